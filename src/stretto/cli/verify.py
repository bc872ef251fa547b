"""`stretto verify`: where worlds or policies are not reproducible."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.options import DONE, FAILED
from stretto.cli.text import filled
from stretto.core import SIMULTANEOUS
from stretto.evaluation.verify import verify
from stretto.missions.resolve import find_missions


def verify_command(  # noqa: PLR0913, PLR0917  one parameter an option
    mission: Annotated[list[str], typer.Argument(metavar="MISSION", help="Missions, as for stretto eval.")],
    policy: options.SomePolicies,
    variant: options.Variants = None,
    cogs: options.Cogs = None,
    map_seed: options.MapSeed = None,
    turns: options.Turns = SIMULTANEOUS,
    mix: options.Mix = False,
    episodes: options.Episodes = 3,
    steps: options.Steps = 200,
    seed: options.Seed = 0,
    allow_import: options.AllowImport = False,
) -> int:
    """Say where worlds or policies are not reproducible.

    The same episodes are played in several ways, and compared bit by bit.
    """
    missions = find_missions(mission, cogs=cogs, variants=variant or (), map_seed=map_seed, allow_import=allow_import)
    asked: dict[str, Any] = {"episodes": episodes, "steps": steps, "seed": seed, "mix": mix, "turns": turns}
    verdict = verify(missions, policy, **asked, on_way=lambda way: print(f"playing: {way}", file=sys.stderr))
    for difference in verdict.differences:
        print(filled(f"different: {difference}"))
    ways, played = len(verdict.ways), verdict.episodes
    if verdict.failure is not None:
        how = f" alike in all {ways} ways" if verdict.same else ""
        of_several = f"all {played} episodes" if verdict.failed == played else f"{verdict.failed} of {played} episodes"
        count = of_several if played > 1 else "the only episode"
        print(filled(f"{count} failed{how}; the first is {' '.join(verdict.failure.split())}"))
    if verdict.same and verdict.failed < played:
        print(f"the same in {ways} ways: {played} episodes, {verdict.steps} steps, every bit")
    return DONE if verdict.same and not verdict.failed else FAILED
