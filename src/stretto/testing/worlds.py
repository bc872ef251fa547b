"""Whether a world of your own repeats itself, which is all that recovery and equal answers rest on."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from stretto import hash_seed
from stretto.adapters.blocks import as_env
from stretto.envs.make import make_vec
from stretto.envs.slot import reset_privately
from stretto.errors import InvalidOutput, UsageError, WorkerDied, WorldHung
from stretto.missions.resolve import makers
from stretto.missions.tasks import Tasks, first_resets
from stretto.seeding import PrivateGenerators, SeedTree
from stretto.testing.runs import Run, play, sample_actions, where_parted
from stretto.testing.values import ContractBroken
from stretto.workers.apart import Beat, Problem, run_apart

_SEEDED = "draw only from self.np_random, which super().reset(seed=seed) seeds, or from the global generators"

_STEP_SECONDS = 60.0
"""How long a world may take for a step, as in `make_vec`."""

_OTHER_HASH_SEEDS = ("1", "2", "3")
"""Compared with 0, which workers have. The caller's is random: by luck, a set of strings has the same order there.

There are three, because a set of two strings has the same order with about half of all seeds.
"""


@dataclass(frozen=True, slots=True)
class _Checked:
    """A world that is checked, and for how long, from which seed and with which tasks."""

    make: Callable[[], Any]
    steps: int
    seed: int
    tasks: Tasks | None


def check_env(  # noqa: PLR0913  every choice has a name and a default here
    id_or_factory: Any,
    *,
    steps: int = 100,
    seed: int = 0,
    tasks: Tasks | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    variants: Sequence[str] = (),
    cogs: int | None = None,
    map_seed: int | None = None,
) -> list[str]:
    """Check that a world repeats itself, also elsewhere and after a kill; return what was found to hold.

    The world and its `tasks` are given as to `make_vec`. It plays `steps` steps with the same random actions each time, and
    three things are compared:

    - two instances, and one instance used twice, from the same seed;
    - the world here, and in a process of its own;
    - a run whose process is killed again and again, and an undisturbed one.

    What the world returns must be within its spaces. It runs in other processes first. So a world that crashes or hangs
    does not end the caller.

    Raises:
        ContractBroken: with a plain sentence for each thing that does not hold, and where the two runs part.
    """
    (make,) = makers(id_or_factory, 1, env_kwargs, variants=variants, cogs=cogs, map_seed=map_seed)
    world = _Checked(make, steps, seed, tasks)
    held: list[str] = []
    broken: list[str] = []
    drawn: set[str] = set()
    checks: list[Callable[[], str | None]] = [
        partial(_repeats_itself, world, drawn),
        partial(_repeats_elsewhere, world),
        partial(_survives_kills, world),
    ]
    for check, sentence in zip(checks, _HOLDS, strict=True):
        try:
            problem = check()
        except UsageError:
            raise
        except Exception as error:
            raise ContractBroken("\n".join([*broken, _how_it_failed(error, world)])) from error
        (broken if problem else held).append(problem or sentence)
    if drawn:
        held.append(
            f"It draws from the global generators of {' and '.join(sorted(drawn))}: Stretto gives it copies of its own "
            f"(global_rng='auto')."
        )
    if broken:
        raise ContractBroken("\n".join(broken))
    return held


_HOLDS = (
    "The same seed and actions give the same steps, in a fresh instance and in a used one.",
    "In a process of its own it gives the same steps as in the caller's.",
    "Killed again and again, and replayed, it gives the same steps as undisturbed.",
)
"""What is found to hold, in the order in which it is looked at."""


def _how_it_failed(error: Exception, world: _Checked) -> str:
    """Say in a sentence why a world could not be played to the end."""
    if isinstance(error, InvalidOutput):
        return f"It returns what its spaces do not allow: {error}."
    if isinstance(error, WorkerDied | WorldHung):
        line = str(error).partition("; its Python stack")[0].partition("\n")[0]
        return f"It ended, or would not end, the process that it was in: {line}."
    hint = "" if world.tasks is not None else "; if it needs options['task'], pass tasks="
    return f"It raised {error!r} {getattr(error, 'place', '')}{hint}."


# ---- the same again ----


def _repeats_itself(world: _Checked, drawn: set[str]) -> str | None:
    resets = first_resets(world.tasks, world.steps + 1, world.seed)
    found = run_apart(
        partial(_play_thrice, world.make, world.steps, world.seed, resets), "being checked", _STEP_SECONDS
    )
    if isinstance(found, Problem):
        raise found.error
    problem, draws = found
    drawn |= draws
    return problem


def _play_thrice(
    make: Callable[[], Any], steps: int, seed: int, resets: list[dict[str, Any]], beat: Beat
) -> tuple[str | None, frozenset[str]]:
    """Play two instances, and the first once more; return how they part, and the global generators that they draw from."""
    guards = [PrivateGenerators(SeedTree(seed).child("check"), probation=1 << 62) for _ in range(3)]
    with closing(as_env(_privately(make))) as first, closing(as_env(_privately(make))) as second:
        first.action_space.seed(seed)
        actions = [first.action_space.sample() for _ in range(steps)]
        worlds = zip((first, second, first), guards, strict=True)
        runs = [_play_one(env, actions, resets, guard, beat) for env, guard in worlds]
    drawn = frozenset(guards[0].drawn)
    if found := _where(runs[0], runs[1]):
        return f"Two instances with seed {seed} and the same actions part at {found}; {_SEEDED}.", drawn
    if found := _where(runs[0], runs[2]):
        used = (
            f"An instance that was used before parts from a fresh one at {found}, with seed {seed} and the same actions"
        )
        return f"{used}; let reset() set everything that an episode changes.", drawn
    return None, drawn


def _play_one(
    env: Any, actions: list[Any], resets: Sequence[dict[str, Any]], guard: PrivateGenerators, beat: Beat
) -> list[Any]:
    begin = iter(resets)
    moments: list[Any] = [copy.deepcopy(reset_privately(env, guard, **next(begin)))]
    for action in actions:
        beat()
        moment = copy.deepcopy(guard.run(env.step, action))
        over = moment[2] or moment[3]
        moments.append((*moment, *copy.deepcopy(reset_privately(env, guard, **next(begin)))) if over else moment)
    return moments


def _privately(make: Callable[[], Any]) -> Any:
    guard = PrivateGenerators(SeedTree(0).child("check"), probation=1)
    return guard.run_repeatable(make, undo=lambda first: first.close())


# ---- elsewhere ----


def _repeats_elsewhere(world: _Checked) -> str | None:
    run = partial(_run, world, checks="always", on_crash="raise")
    there = run(backend="process", isolate=True, workers=2)
    if found := _where(run(backend="serial").moments, there.moments):
        return (
            f"In a process of its own the world goes another way from {found}; does it read the clock, or share something "
            f"with other instances?{_capitalized(hash_seed.hint())}"
        )
    for seed in _OTHER_HASH_SEEDS if hash_seed.differs_here() else ():
        if found := _where(_run_with_hash_seed(world, seed), there.moments):
            return f"With another hash seed the world goes another way from {found}.{_capitalized(hash_seed.hint())}"
    return None


def _run_with_hash_seed(world: _Checked, seed: str) -> list[Any]:
    """Return what the world gives in workers with this hash seed."""
    found = run_apart(partial(_run_below, world, seed), "being checked with another hash seed", _STEP_SECONDS)
    if isinstance(found, Problem):
        raise found.error
    return found


def _run_below(world: _Checked, seed: str, beat: Beat) -> list[Any]:
    os.environ[hash_seed.NAME] = seed  # this process is thrown away; its own workers take their seed from here
    run = _run(world, lambda _: beat(), backend="process", isolate=True, checks="always", on_crash="raise")
    return run.moments


def _run(world: _Checked, before_step: Callable[[int], None] | None = None, **options: Any) -> Run:
    with make_vec(world.make, 2, tasks=world.tasks, **options) as envs:
        return play(envs, sample_actions(envs, world.steps, world.seed), world.seed, before_step=before_step)


def _capitalized(hint: str) -> str:
    text = hint.removeprefix("; ")
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _survives_kills(world: _Checked) -> str | None:
    with make_vec(world.make, 2, tasks=world.tasks, backend="process", isolate=True, workers=2) as envs:
        actions = sample_actions(envs, world.steps, world.seed)
        expected = play(envs, actions, world.seed)

        def kill(number: int) -> None:
            if number % max(1, world.steps // 5) == world.steps // 10:
                os.kill(envs.worker_pids[number % 2], signal.SIGKILL)

        found = _where(expected.moments, play(envs, actions, world.seed, before_step=kill).moments)
        lost = envs.statistics().truncations
    if found is None:
        return None
    why = f"; {lost} episodes could not be replayed and were truncated" if lost else ""
    return f"A run whose worker was killed parts from an undisturbed one at {found}{why}; {_SEEDED}."


def _where(one: list[Any], other: list[Any]) -> str | None:
    parted = where_parted(one, other)
    return parted and f"{parted[0]} ({parted[1]})"
