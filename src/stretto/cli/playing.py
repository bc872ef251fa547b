"""`stretto missions`, `policies`, `describe`, `play` and `verify`: parse, call, print."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from stretto.adapters.episodes import as_episodes
from stretto.cli.evaluation import FAILED, WIDTH
from stretto.evaluation.missions import find_missions, known_missions
from stretto.evaluation.replay import watch
from stretto.evaluation.verify import verify
from stretto.policies.spec import known_policies, parse_policy


def missions_command() -> None:
    """List the missions that are known by name."""
    table = Table(box=None, pad_edge=False)
    table.add_column("mission", no_wrap=True)
    table.add_column("what it is")
    table.add_column("variants")
    for mission in known_missions().values():
        table.add_row(mission.name, mission.summary, ", ".join(mission.variants))
    Console(width=min(WIDTH, Console().width), highlight=False).print(table)


def policies_command() -> None:
    """List the policies that are known by name."""
    table = Table(box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    table.add_column("what it does")
    for policy in known_policies().values():
        table.add_row(policy.name, policy.summary)
    Console(width=min(WIDTH, Console().width), highlight=False).print(table)


def describe_command(
    mission: Annotated[str, typer.Argument(metavar="MISSION")],
    variant: Annotated[list[str] | None, typer.Option("-v", "--variant", help="A variant of our games.")] = None,
    cogs: Annotated[int | None, typer.Option("-c", "--cogs", help="How many agents our games have.")] = None,
) -> None:
    """Say what a mission is: its rules, who acts in it, what they see and what they can do."""
    for found in find_missions([mission], cogs=cogs, variants=variant or ()):
        env = found.make()
        world = as_episodes(env)
        spec = world.spec()
        rules = (type(getattr(env, "unwrapped", env)).__doc__ or "").strip()
        print(f"{found.name}: {found.summary}\n\n{rules}\n")
        print(f"agents: {', '.join(spec.agents)}")
        agent = spec.agents[0]
        print(f"{agent} sees {spec.observation_spaces[agent]}")
        print(f"{agent} does {spec.action_spaces[agent]} {', '.join(spec.action_names)}".rstrip())
        for key, value in found.details.items():
            print(f"{key} = {value}")
        world.close()


def play_command(  # noqa: PLR0913, PLR0917  one parameter an option
    mission: Annotated[str, typer.Argument(metavar="MISSION")],
    policy: Annotated[list[str], typer.Option("-p", "--policy", help="A policy; several play together.")],
    variant: Annotated[list[str] | None, typer.Option("-v", "--variant", help="A variant of our games.")] = None,
    cogs: Annotated[int | None, typer.Option("-c", "--cogs", help="How many agents our games have.")] = None,
    steps: Annotated[int | None, typer.Option("-s", "--steps", help="The most steps.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
    episode: Annotated[int, typer.Option(help="Which episode of that seed.")] = 0,
    delay: Annotated[float, typer.Option(help="Seconds between two steps; in a terminal, -1 waits for Enter.")] = 0.1,
) -> None:
    """Step through an episode in the terminal."""
    (found,) = find_missions([mission], cogs=cogs, variants=variant or ())
    console = Console(highlight=False)
    rewards: dict[str, float] = {}
    for moment in watch(found, [parse_policy(text) for text in policy], seed=seed, episode=episode, steps=steps):
        for agent, reward in moment.rewards.items():
            rewards[agent] = rewards.get(agent, 0.0) + reward
        if console.is_terminal:
            console.clear()
        if isinstance(moment.picture, str):
            print(moment.picture)
        told = ", ".join(f"{agent} does {action}" for agent, action in moment.actions.items())
        print(f"step {moment.step}: {told}"[: 4 * WIDTH])
        print(f"reward so far: {', '.join(f'{agent} {reward:.3g}' for agent, reward in rewards.items())}"[: 4 * WIDTH])
        if delay < 0 and sys.stdin.isatty():
            input()
        elif console.is_terminal:
            time.sleep(max(0.0, delay))


def verify_command(  # noqa: PLR0913, PLR0917  one parameter an option
    mission: Annotated[list[str], typer.Argument(metavar="MISSION...")],
    policy: Annotated[list[str], typer.Option("-p", "--policy", help="A policy.")],
    variant: Annotated[list[str] | None, typer.Option("-v", "--variant", help="A variant of our games.")] = None,
    cogs: Annotated[int | None, typer.Option("-c", "--cogs", help="How many agents our games have.")] = None,
    mix: Annotated[bool, typer.Option("--mix", help="Let the policies play together.")] = False,
    episodes: Annotated[int, typer.Option("-e", "--episodes", help="Episodes of each mission.")] = 3,
    steps: Annotated[int, typer.Option("-s", "--steps", help="The most steps of an episode.")] = 200,
    seed: Annotated[int, typer.Option(help="The seed of everything random.")] = 0,
) -> int:
    """Play the same episodes in several ways, and say where worlds or policies are not reproducible."""
    missions = find_missions(mission, cogs=cogs, variants=variant or ())
    specs = [parse_policy(text) for text in policy]
    console = Console(stderr=True, highlight=False)
    verdict = verify(
        missions,
        specs,
        episodes=episodes,
        steps=steps,
        seed=seed,
        mix=mix,
        on_way=lambda way: console.print(f"playing: {way}"),
    )
    for difference in verdict.differences:
        print(f"different: {difference}")
    if verdict.same:
        print(f"the same in {len(verdict.ways)} ways: {verdict.episodes} episodes, {verdict.steps} steps, every bit")
    return 0 if verdict.same else FAILED
