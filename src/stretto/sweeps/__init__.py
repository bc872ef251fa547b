"""Sweeps: training runs with many settings and seeds, and which settings are best."""
