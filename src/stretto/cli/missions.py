"""`stretto missions`: which missions are known by name."""

from __future__ import annotations

from stretto.cli.text import filled, print_list, warn
from stretto.evaluation.registry import known_missions


def missions_command() -> None:
    """List the missions that are known by name."""
    known = known_missions()
    good = {name: one for name, one in known.items() if one.error is None}
    print_list(("mission", "what it is"), [(name, one.summary) for name, one in good.items()])
    variants = {one.game: one.variants for one in good.values() if one.variants}
    if variants:
        print()
    for game, names in variants.items():
        print(filled(f"variants of {game}: {', '.join(names)}"))
    warn(f"the mission {name} {one.error}" for name, one in known.items() if one.error is not None)
