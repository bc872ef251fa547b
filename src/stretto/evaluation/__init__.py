"""Evaluation: policies on missions, in parallel, with results that one can trust."""
