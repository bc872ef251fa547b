"""Many worlds as one: groups of environments on workers."""
