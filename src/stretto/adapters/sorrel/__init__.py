"""Sorrel: its environments as games in turns, the examples that it brings, and a faster way to see its grids."""
