"""Bringing slots back to where they were: what was done to each, how it is done again, and what becomes of lost workers."""
