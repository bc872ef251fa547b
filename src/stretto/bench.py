"""A race: a plain loop and our backends step the same worlds in turn, so that one sees what each is worth here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Protocol

import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from stretto.adapters.blocks import as_env
from stretto.autotune import probe
from stretto.budget import CpuBudget, default_budget
from stretto.core import AgentId, AgentKind
from stretto.envs.make import make_vec
from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.envs.slot import Maker
from stretto.envs.vector import VectorEnv
from stretto.errors import InvalidLayout, Place, UsageError, WorldError
from stretto.missions.resolve import makers as makers_of
from stretto.spaces import Array, SpaceLayout, map_space
from stretto.workers.apart import Problem, run_apart

PLAIN_LOOP = "plain loop"
BACKENDS = ("serial", "thread", "process", "auto")

_ROUNDS = 5
_WARM_UP_SECONDS = 0.1
_ACTION_BATCHES = 16
_TRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RaceRow:
    """How one of them did: medians over the rounds.

    `ratio` is to the plain loop of the same round, `share` is of what all cores could do at the plain loop's speed,
    and `choice` says what ran the worlds, and why.
    """

    name: str
    steps_per_second: float
    ratio: float
    share: float
    choice: str


@dataclass(frozen=True, slots=True)
class RaceResult:
    """How all of them did on one world; `step_seconds` is what a step takes in the plain loop."""

    world: str
    num_envs: int
    cores: int
    step_seconds: float
    rows: tuple[RaceRow, ...]


_AS_FAST = 0.95
"""A choice that reaches this share of the fastest is as good: so much rounds differ by chance."""


def verdict(result: RaceResult) -> str | None:
    """Say in a sentence what the race, which is a second measurement, showed of the choice of `auto`, if that took part."""
    rows = {row.name: row for row in result.rows}
    auto = rows.pop("auto", None)
    if auto is None:
        return None
    measured = f"Measured again in this race, it ran at {auto.ratio:.2f} times the speed of the plain loop"
    best = max(rows.values(), key=lambda row: row.ratio)
    if auto.ratio >= _AS_FAST * best.ratio:
        return f"{measured}."
    plain = best.name == PLAIN_LOOP
    other, how = ("", "a plain loop") if plain else (f", and {best.name} at {best.ratio:.2f}", f"backend={best.name!r}")
    return (
        f"{measured}{other}: while it raced, cores were not as free as when it was chosen. If that is how this machine "
        f"is, use {how}."
    )


class Contestant(Protocol):
    """Whoever steps many worlds at once."""

    def step(self, actions: Any) -> int:
        """Step all worlds and return how many real steps that were: one that only resets is none."""


def race(  # noqa: PLR0913  every choice has a name and a default here
    world: Any,
    num_envs: int = 64,
    *,
    seconds: float = 1.5,
    env_kwargs: Mapping[str, Any] | None = None,
    variants: Sequence[str] = (),
    cogs: int | None = None,
    map_seed: int | None = None,
    backends: Sequence[str] = BACKENDS,
    budget: CpuBudget | None = None,
    on_progress: Callable[[float], None] = lambda _: None,
) -> RaceResult:
    """Let a plain loop and `backends` step the same worlds, each for `seconds`, in interleaved rounds.

    `world`, and what it is made with, are what `make_vec` takes; `on_progress` hears which share of the race is over.
    """
    if num_envs < 1:
        raise InvalidLayout(f"num_envs must be at least 1, got {num_envs}; 64 is a good start")
    if not seconds > 0:
        raise UsageError(f"seconds must be more than 0, got {seconds}; 1.5 is a good start")
    cores = (budget or default_budget()).total
    asked: dict[str, Any] = {"env_kwargs": env_kwargs, "variants": variants, "cogs": cogs, "map_seed": map_seed}
    with ExitStack() as stack:
        made = makers_of(world, num_envs, **asked)
        _try_apart(_name(world), made[0])
        plain = PlainLoop(made)
        stack.callback(plain.close)
        runners: dict[str, Contestant] = {PLAIN_LOOP: plain}
        choices = {PLAIN_LOOP: "a list of environments, stepped one after the other in this process"}
        batches = plain.action_batches(_ACTION_BATCHES)
        for backend in backends:
            # They take turns, so each may have all cores: none draws on what the others were given.
            envs = make_vec(world, num_envs, **asked, backend=backend, copy=False, budget=CpuBudget(cores))
            stack.callback(envs.close)
            runners[backend] = _Vector(envs) if isinstance(envs, VectorEnv) else _MultiAgentVector(envs, batches)
            choices[backend] = envs.choice
        rates = _run(runners, batches, seconds, on_progress)
    rows = tuple(_row(name, rates, cores, choices[name]) for name in runners)
    return RaceResult(_name(world), num_envs, cores, 1 / rows[0].steps_per_second, rows)


def _try_apart(name: str, make: Maker) -> None:
    """Raise what a world raises, and refuse one that crashes or hangs: the plain loop would step it in this process."""
    try:
        found = run_apart(partial(probe, partial(_as_env, make), ({"seed": 0}, {})), "being tried", _TRY_SECONDS)
    except UsageError:  # it cannot be sent there
        return
    if isinstance(found, Problem):
        if not found.lost:
            raise found.error
        raise WorldError(
            f"{name} would end this process, in which a plain loop steps it: {found.reason}", Place("racing")
        )


def _as_env(make: Maker) -> Any:
    return as_env(make())


def _name(world: Any) -> str:
    """Return what a world is called in a table."""
    if isinstance(world, str):
        return world
    names = (getattr(world, name, None) for name in ("name", "id", "__name__"))
    return str(next((name for name in names if name), repr(world)))


def _run(
    runners: dict[str, Contestant], batches: list[Any], seconds: float, on_progress: Callable[[float], None]
) -> dict[str, list[float]]:
    """Return the steps a second of each runner, one figure a round; the first round warms up and does not count."""
    rates: dict[str, list[float]] = {name: [] for name in runners}
    turns = len(runners) * (_ROUNDS + 1)
    for number in range(_ROUNDS + 1):
        for position, (name, runner) in enumerate(runners.items()):
            rate = _turn(runner, batches, seconds / _ROUNDS if number else min(_WARM_UP_SECONDS, seconds))
            if number:
                rates[name].append(rate)
            on_progress((number * len(runners) + position + 1) / turns)
    return rates


def _turn(runner: Contestant, batches: list[Any], seconds: float) -> float:
    clock, step = time.perf_counter, runner.step
    steps = turns = 0
    began = clock()
    while clock() - began < seconds or not steps:
        steps += step(batches[turns % len(batches)])
        turns += 1
    return steps / (clock() - began)


def _row(name: str, rates: dict[str, list[float]], cores: int, choice: str) -> RaceRow:
    ratio = median(ours / plain for ours, plain in zip(rates[name], rates[PLAIN_LOOP], strict=True))
    return RaceRow(name, median(rates[name]), ratio, ratio / cores, choice)


class _Vector:
    """One of our vector environments; the step after the end of an episode only resets."""

    def __init__(self, envs: VectorEnv) -> None:
        self._envs, self._over = envs, 0
        envs.reset(seed=0)

    def step(self, actions: Any) -> int:
        _, _, terminated, truncated, _ = self._envs.step(actions)
        real = self._envs.num_envs - self._over
        self._over = int(np.count_nonzero(terminated | truncated))
        return real


class _MultiAgentVector:
    """One of our vector environments with several agents; an episode is over when nobody can act any more."""

    def __init__(self, envs: MultiAgentVectorEnv, batches: Sequence[Any]) -> None:
        self._envs, self._over = envs, 0
        self._actions = {id(batch): _by_agent(envs.kinds, batch) for batch in batches}
        envs.reset(seed=0)

    def step(self, actions: Any) -> int:
        self._envs.step(self._actions[id(actions)])
        real = self._envs.num_envs - self._over
        self._over = int(np.count_nonzero(~self._envs.mask.blocks[0].any(axis=1)))
        return real


def _by_agent(kinds: Sequence[AgentKind], blocks: tuple[Any, ...]) -> dict[AgentId, Any]:
    """Return actions that lie in one block a kind, `(num_envs, agents, ...)`, by agent."""
    return {
        agent: map_space(lambda _, part, j=j: part[:, j], kind.action_space, block)
        for kind, block in zip(kinds, blocks, strict=True)
        for j, agent in enumerate(kind.agents)
    }


class PlainLoop:
    """What one would write without a library: a list of environments, stepped in turn into a batch of observations.

    Written to be fast: methods are looked up once, flags are cleared in bulk and written only where an episode ends.
    (Actions as Python numbers are slower: Gymnasium's spaces turn them back.) An environment is reset in the step after
    its episode's end. Agents of a world with several lie in blocks, as in our vector environments. Each batch is written
    over the one before. The first one is seeded with `seed`, the next with one more.
    """

    def __init__(self, makers: Sequence[Maker], seed: int = 0) -> None:
        self.envs = [as_env(make()) for make in makers]
        count = len(makers)
        self.action_space = batch_space(self.envs[0].action_space, count)
        self._steps = [env.step for env in self.envs]
        self._pending = [False] * count
        layout = SpaceLayout(self.envs[0].observation_space)
        self.observations = [np.zeros(shape, dtype) for shape, dtype in layout.shapes(count)]
        self.objects: list[list[Any]] = [[None] * count for _ in layout.loose]
        self._target = layout.target(self.observations, self._put_loose)
        self.rewards = np.zeros(count)
        self.terminated, self.truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        self.infos: list[dict[str, Any]] = []
        for i, env in enumerate(self.envs):
            self._target[i] = env.reset(seed=seed + i)[0]

    def _put_loose(self, leaf: int, i: int, value: Any) -> None:
        self.objects[leaf][i] = value

    def action_batches(self, count: int) -> list[Any]:
        """Return batches of random actions, always the same ones."""
        self.action_space.seed(0)
        return [self.action_space.sample() for _ in range(count)]

    def step(self, actions: Any) -> int:
        """Step every environment; return how many real steps that were."""
        target, pending, terminated, truncated = self._target, self._pending, self.terminated, self.truncated
        terminated[:] = False
        truncated[:] = False
        rewards: list[Any] = []
        self.infos = infos = []
        resets = 0
        for i, (step, action) in enumerate(zip(self._steps, self._each(actions), strict=True)):
            if pending[i]:
                observation, info = self.envs[i].reset()
                pending[i] = False
                rewards.append(0.0)
                resets += 1
            else:
                observation, reward, over, cut, info = step(action)
                rewards.append(reward)
                if over or cut:
                    terminated[i], truncated[i], pending[i] = over, cut, True
            target[i] = observation
            infos.append(info)
        self.rewards[:] = rewards
        return len(rewards) - resets

    def _each(self, actions: Array | Any) -> Iterable[Any]:
        return actions if isinstance(actions, np.ndarray) else iterate(self.action_space, actions)

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()
