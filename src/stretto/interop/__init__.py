"""Ours as other people's: each module is imported only by those who have the package that it serves."""
