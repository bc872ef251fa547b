"""Whether a world of your own repeats itself, which is all that recovery and equal answers rest on."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from stretto.adapters.blocks import as_env
from stretto.envs.make import make_vec
from stretto.envs.slot import reset_privately
from stretto.missions.resolve import makers
from stretto.seeding import PrivateGenerators, SeedTree
from stretto.testing.runs import play, sample_actions, where_parted
from stretto.testing.values import ContractBroken

_SEEDED = "draw only from self.np_random, which super().reset(seed=seed) seeds, or from the global generators"


def check_env(
    id_or_factory: Any,
    *,
    steps: int = 100,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    variants: Sequence[str] = (),
) -> list[str]:
    """Check that a world repeats itself, also elsewhere and after a kill; return what was found to hold.

    The world is given as to `make_vec`. Three things are looked at, with the same random actions for `steps` steps:
    whether two instances, and one instance used twice, go the same way from the same seed; whether the world goes the
    same way in a process of its own; and whether a run whose process is killed again and again is the same as an
    undisturbed one.

    Raises:
        ContractBroken: with a plain sentence for each thing that does not hold, and where the two runs part.
    """
    (make,) = makers(id_or_factory, 1, env_kwargs, variants=variants)
    held: list[str] = []
    broken: list[str] = []
    for check in (_repeats_itself, _repeats_elsewhere, _survives_kills):
        problem = check(make, steps, seed)
        (broken if problem else held).append(problem or (check.__doc__ or "").splitlines()[0])
    drawn = _drawn(make, steps, seed)
    if drawn:
        held.append(
            f"It draws from the global generators of {' and '.join(sorted(drawn))}: Stretto gives it copies of its own "
            f"(global_rng='auto')."
        )
    if broken:
        raise ContractBroken("\n".join(broken))
    return held


def _repeats_itself(make: Callable[[], Any], steps: int, seed: int) -> str | None:
    """The same seed and actions give the same steps, in a fresh instance and in a used one."""
    with closing(as_env(_privately(make))) as first, closing(as_env(_privately(make))) as second:
        actions = _actions(first, steps, seed)
        runs = [_play_one(first, actions, seed), _play_one(second, actions, seed), _play_one(first, actions, seed)]
    found = _where(runs[0], runs[1])
    if found:
        return f"Two instances with seed {seed} and the same actions part at {found}; {_SEEDED}."
    found = _where(runs[0], runs[2])
    if found:
        return (
            f"An instance that was used before parts from a fresh one at {found}, with seed {seed} and the same "
            f"actions; let reset() set everything that an episode changes."
        )
    return None


def _repeats_elsewhere(make: Callable[[], Any], steps: int, seed: int) -> str | None:
    """In a process of its own it gives the same steps as in the caller's."""
    options: dict[str, Any] = {"num_envs": 2, "max_restarts": 3}
    with make_vec(make, backend="serial", **options) as here:
        actions = sample_actions(here, steps, seed)
        expected = play(here, actions, seed)
    with make_vec(make, backend="process", isolate=True, workers=2, **options) as there:
        found = _where(expected.moments, play(there, actions, seed).moments)
    if found is None:
        return None
    return (
        f"In a process of its own the world goes another way from {found}; does it iterate over a set of strings "
        f"(their order differs from process to process), read the clock, or share something with other instances?"
    )


def _survives_kills(make: Callable[[], Any], steps: int, seed: int) -> str | None:
    """Killed again and again, and replayed, it gives the same steps as undisturbed."""
    with make_vec(make, 2, backend="process", isolate=True, workers=2) as envs:
        actions = sample_actions(envs, steps, seed)
        expected = play(envs, actions, seed)

        def kill(number: int) -> None:
            if number % max(1, steps // 5) == steps // 10:
                os.kill(envs.worker_pids[number % 2], signal.SIGKILL)

        found = _where(expected.moments, play(envs, actions, seed, before_step=kill).moments)
        lost = envs.statistics().truncations
    if found is None:
        return None
    why = f"; {lost} episodes could not be replayed and were truncated" if lost else ""
    return f"A run whose worker was killed parts from an undisturbed one at {found}{why}; {_SEEDED}."


def _play_one(env: Any, actions: list[Any], seed: int, guard: PrivateGenerators | None = None) -> list[Any]:
    guard = guard or PrivateGenerators(SeedTree(seed).child("check"), probation=1 << 62)
    moments: list[Any] = [copy.deepcopy(reset_privately(env, guard, seed=seed))]
    for action in actions:
        moment = copy.deepcopy(guard.run(env.step, action))
        over = moment[2] or moment[3]
        moments.append((*moment, *copy.deepcopy(reset_privately(env, guard))) if over else moment)
    return moments


def _actions(env: Any, steps: int, seed: int) -> list[Any]:
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(steps)]


def _where(one: list[Any], other: list[Any]) -> str | None:
    parted = where_parted(one, other)
    return parted and f"{parted[0]} ({parted[1]})"


def _privately(make: Callable[[], Any]) -> Any:
    guard = PrivateGenerators(SeedTree(0).child("check"), probation=1)
    return guard.run_repeatable(make, undo=lambda first: first.close())


def _drawn(make: Callable[[], Any], steps: int, seed: int) -> set[str]:
    guard = PrivateGenerators(SeedTree(seed).child("check"), probation=1 << 62)
    with closing(as_env(_privately(make))) as env:
        _play_one(env, _actions(env, steps, seed), seed, guard)
    return guard.drawn
