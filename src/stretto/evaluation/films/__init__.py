"""Films of episodes, and the files that they are kept in."""
