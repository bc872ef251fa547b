"""What code, weights and an installation are, by digest and version, so that a score can say what produced it."""
