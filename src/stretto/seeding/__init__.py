"""Random streams by identity, and private copies of the global generators."""

from stretto.seeding.generators import (
    GLOBAL_GENERATORS,
    LATE_IMPORT,
    GlobalDraws,
    PrivateGenerators,
    take_turn_from,
    waits_for_turn,
    watching_many,
)
from stretto.seeding.streams import SEED_BITS, SeedTree, episode_seed

__all__ = [
    "GLOBAL_GENERATORS",
    "LATE_IMPORT",
    "SEED_BITS",
    "GlobalDraws",
    "PrivateGenerators",
    "SeedTree",
    "episode_seed",
    "take_turn_from",
    "waits_for_turn",
    "watching_many",
]
