"""Learners: what turns experience into better policies, a block of agents at a time."""
