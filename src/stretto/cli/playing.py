"""`stretto missions`, `policies`, `describe`, `play` and `verify`: parse, call, print."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stretto.adapters.agents import as_agents
from stretto.cli import options
from stretto.cli.options import DONE, FAILED
from stretto.cli.text import documentation, filled, say, screen_width
from stretto.core import SIMULTANEOUS
from stretto.errors import Place, StrettoError, UsageError
from stretto.evaluation.missions import Mission, find_missions
from stretto.evaluation.registry import known_missions
from stretto.evaluation.verify import verify
from stretto.evaluation.video import Moment, watch_episode
from stretto.policies.registry import known_policies
from stretto.policies.spec import parse_policy

_LONGEST_NAME = 24
_MOST_LINES = 4


def missions_command() -> None:
    """List the missions that are known by name."""
    known = known_missions()
    good = {name: one for name, one in known.items() if one.error is None}
    _print_list(("mission", "what it is"), [(name, one.summary) for name, one in good.items()])
    variants = {one.game: one.variants for one in good.values() if one.variants}
    if variants:
        print()
    for game, names in variants.items():
        print(filled(f"variants of {game}: {', '.join(names)}"))
    _warn(f"the mission {name} {one.error}" for name, one in known.items() if one.error is not None)


def policies_command() -> None:
    """List the policies that are known by name."""
    known = known_policies()
    _print_list(("policy", "what it does"), [(name, one.summary) for name, one in known.items() if one.error is None])
    _warn(f"the policy {name} cannot be used: {one.error}" for name, one in known.items() if one.error is not None)


def _print_list(headings: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(box=None, pad_edge=False)
    for i, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", max_width=_LONGEST_NAME if i == 0 else None)
    for row in rows:
        table.add_row(*map(escape, row))
    Console(width=screen_width(), highlight=False).print(table)


def _warn(sentences: Iterable[str]) -> None:
    """Tell on stderr, in a line each, what is wrong with other people's packages."""
    for sentence in sentences:
        say(f"stretto: warning: {' '.join(sentence.split())}")


def describe_command(
    mission: Annotated[str, typer.Argument(metavar="MISSION", help="A mission, as for stretto eval.")],
    variant: options.Variants = None,
    cogs: options.Cogs = None,
    map_seed: options.MapSeed = None,
    allow_import: options.AllowImport = False,
) -> None:
    """Say what a mission is, who acts in it, and what they see and do."""
    missions = find_missions([mission], cogs=cogs, variants=variant or (), map_seed=map_seed, allow_import=allow_import)
    for found in missions:
        with _users_code("describing"):
            _describe(found)


@contextmanager
def _users_code(doing: str) -> Iterator[None]:
    """Mark what is raised in the body as raised by a mission or a policy, as workers do: it is no mistake of ours."""
    try:
        yield
    except StrettoError:
        raise
    except Exception as error:
        with suppress(AttributeError):
            error.place = Place(doing)  # type: ignore[attr-defined]
        raise


def _describe(mission: Mission) -> None:
    env = mission.make()
    world = as_agents(env)
    spec = world.spec()
    agent = spec.agents[0]
    print(filled(f"{mission.name}: {mission.summary}"))
    if rules := _rules(type(getattr(env, "unwrapped", env))):
        print(f"\n{documentation(rules)}\n")
    print(filled(f"agents: {', '.join(spec.agents)}", _MOST_LINES))
    print(filled(f"{agent} sees {_one_line(spec.observation_spaces[agent])}"))
    print(filled(f"{agent} does {_one_line(spec.action_spaces[agent])} {', '.join(spec.action_names)}".rstrip()))
    for key, value in mission.details.items():
        print(filled(f"{key} = {value}"))
    world.close()


def _rules(kind: type) -> str:
    """Return what a world's own class says of it, or its module; what a class inherits is not about this world."""
    own = vars(kind).get("__doc__") or vars(sys.modules[kind.__module__]).get("__doc__")
    return inspect.cleandoc(own or "")


def _one_line(value: Any) -> str:
    return " ".join(str(value).split())


def play_command(  # noqa: PLR0913, PLR0917  one parameter an option
    mission: Annotated[str, typer.Argument(metavar="MISSION", help="A mission, as for stretto eval.")],
    policy: options.SomePolicies,
    variant: options.Variants = None,
    cogs: options.Cogs = None,
    map_seed: options.MapSeed = None,
    turns: options.Turns = SIMULTANEOUS,
    steps: options.Steps = None,
    seed: options.Seed = 0,
    episode: Annotated[
        int, typer.Option(parser=options.whole_number, metavar="NUMBER", help="Which episode of that seed.")
    ] = 0,
    delay: Annotated[
        float,
        typer.Option(
            parser=options.number, metavar="SECONDS", help="Between two steps; -1 waits for Enter, in a terminal."
        ),
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
    policies = [parse_policy(text) for text in policy]
    moments = watch_episode(found, policies, seed=seed, episode=episode, steps=steps, turns=turns)
    with _users_code("playing"):
        _show(moments, delay)


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
        told = ", ".join(f"{agent} does {moment.does(agent)}" for agent in moment.actions)
        print(filled(f"step {moment.step}: {told}".removesuffix(": "), _MOST_LINES))
        so_far = ", ".join(f"{agent} {reward:.3g}" for agent, reward in rewards.items())
        print(filled(f"reward so far: {so_far}", _MOST_LINES))
        if delay < 0 and sys.stdin.isatty():
            input()
        elif console.is_terminal:
            time.sleep(max(0.0, delay))


def verify_command(  # noqa: PLR0913, PLR0917  one parameter an option
    mission: Annotated[list[str], typer.Argument(metavar="MISSION", help="Missions, as for stretto eval.")],
    policy: options.SomePolicies,
    variant: options.Variants = None,
    cogs: options.Cogs = None,
    map_seed: options.MapSeed = None,
    mix: options.Mix = False,
    turns: options.Turns = SIMULTANEOUS,
    episodes: options.Episodes = 3,
    steps: options.Steps = 200,
    seed: options.Seed = 0,
    allow_import: options.AllowImport = False,
) -> int:
    """Say where worlds or policies are not reproducible.

    The same episodes are played in several ways, and compared bit by bit.
    """
    missions = find_missions(mission, cogs=cogs, variants=variant or (), map_seed=map_seed, allow_import=allow_import)
    specs = [parse_policy(text) for text in policy]
    verdict = verify(
        missions,
        specs,
        episodes=episodes,
        steps=steps,
        seed=seed,
        mix=mix,
        turns=turns,
        on_way=lambda way: print(f"playing: {way}", file=sys.stderr),
    )
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
