"""Experience from many worlds at once."""
