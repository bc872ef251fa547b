"""`stretto missions`: which missions are known by name."""

from __future__ import annotations

from stretto.cli.text import filled, print_usable
from stretto.missions.registry import known_missions


def missions_command() -> None:
    """List the missions that are known by name."""
    good = print_usable("mission", "what it is", known_missions())
    variants = {one.origin: one.value.variants for one in good if one.value is not None and one.value.variants}
    if variants:
        print()
    for game, names in variants.items():
        print(filled(f"variants of {game}: {', '.join(names)}"))
