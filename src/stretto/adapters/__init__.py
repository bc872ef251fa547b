"""Other people's worlds as ours."""
