"""`stretto missions`: which missions are known by name."""

from __future__ import annotations

from stretto.cli.text import filled, print_usable
from stretto.missions import cogames
from stretto.missions.registry import KnownMission, known_missions
from stretto.registry import Known


def missions_command() -> None:
    """List the missions that are known by name."""
    summaries = cogames.summaries().items()
    theirs: dict[str, KnownMission] = {name: Known(name, told, cogames.PROGRAM) for name, told in summaries}
    good = print_usable("mission", "what it is", theirs | known_missions())
    variants = {one.origin: one.value.variants for one in good if one.value is not None and one.value.variants}
    if variants:
        print()
    for game, names in variants.items():
        print(filled(f"variants of {game}: {', '.join(names)}"))
