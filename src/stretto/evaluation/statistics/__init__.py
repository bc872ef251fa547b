"""Numbers: what the episodes of an evaluation say, with intervals."""
