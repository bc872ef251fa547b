"""Policies: observations by agent in, actions by agent out."""
