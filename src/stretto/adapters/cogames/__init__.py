"""Missions and policies of cogames, which play in mettagrid's simulator; imported where somebody asks for them."""
