"""Games of our own, so that there is something real to run: numpy alone."""
