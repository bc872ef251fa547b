"""`stretto play`: an episode, step by step."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console

from stretto.cli import options
from stretto.cli.text import MOST_LINES, filled, users_code
from stretto.core import SIMULTANEOUS
from stretto.errors import UsageError
from stretto.evaluation.films.video import Moment, watch_episode
from stretto.evaluation.plan import Plan, entries_of
from stretto.missions.resolve import find_missions
from stretto.policies.spec import parse_policy


def play_command(  # noqa: PLR0913, PLR0917  one parameter an option
    mission: Annotated[str, typer.Argument(metavar="MISSION", help="A mission, as for stretto eval.")],
    policy: options.SomePolicies,
    variant: options.Variants = None,
    cogs: options.Cogs = None,
    map_seed: options.MapSeed = None,
    turns: options.Turns = SIMULTANEOUS,
    steps: options.Steps = None,
    seed: options.Seed = 0,
    episode: Annotated[int, options.whole("--episode", help="Which episode of that seed.")] = 0,
    delay: Annotated[
        float,
        options.number("--delay", metavar="SECONDS", help="Between two steps; -1 waits for Enter, in a terminal."),
    ] = 0.1,
    allow_import: options.AllowImport = False,
) -> None:
    """Step through an episode; several policies play together."""
    found, *others = find_missions(
        [mission], cogs=cogs, variants=variant or (), map_seed=map_seed, allow_import=allow_import
    )
    if others:
        raise UsageError(f"one mission is played, got {mission!r} for {1 + len(others)} of them; name one")
    if episode < 0:
        raise UsageError(f"--episode must be the number of an episode, from 0 on, got {episode}")
    entries = entries_of([parse_policy(text) for text in policy], mix=len(policy) > 1)
    plan = Plan((found,), entries, episode + 1, seed, steps, turns)
    with users_code("playing"):
        _show(watch_episode(plan, episode), delay)


def _show(moments: Iterable[Moment], delay: float) -> None:
    """Print each moment, in a terminal one in place of the other."""
    console = Console(highlight=False)
    rewards: dict[str, float] = {}
    for moment in moments:
        for agent, reward in moment.rewards.items():
            rewards[agent] = rewards.get(agent, 0.0) + reward
        if console.is_terminal:
            console.clear()
        if isinstance(moment.picture, str):
            print(moment.picture)
        deeds = ", ".join(f"{agent} does {moment.does(agent)}" for agent in moment.actions)
        print(filled(f"step {moment.step}: {deeds}".removesuffix(": "), MOST_LINES))
        so_far = ", ".join(f"{agent} {reward:.3g}" for agent, reward in rewards.items())
        print(filled(f"reward so far: {so_far}", MOST_LINES))
        if delay < 0 and sys.stdin.isatty():
            input()
        elif console.is_terminal:
            time.sleep(max(0.0, delay))
