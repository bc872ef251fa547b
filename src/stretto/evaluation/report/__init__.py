"""The report of an evaluation: its answer in sentences, its tables, and its page."""
