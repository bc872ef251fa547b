"""Rollouts as datasets of Minari, Farama's format for offline reinforcement learning, and such datasets as rollouts."""

from stretto.collection.minari_datasets import read_dataset, write_dataset

__all__ = ["read_dataset", "write_dataset"]
