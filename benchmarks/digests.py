"""Digests of a fixed set of runs, to see whether two checkouts give the same, bit by bit.

    python benchmarks/digests.py --out one.json                run everything, about two minutes on two cores
    python benchmarks/digests.py --out one.json --only play/   what has this in its name
    python benchmarks/digests.py --compare one.json other.json

Comparing prints the names that differ, and exits with 1 if there are any. A name says what was run: `play`, `kill`
(workers are killed), `truncate` (they are killed, and their episodes cut short), `send`, `eval` or `seeds`, and then how.
A run has digests of its `values`, its `counts` and, with several agents, its `masks`. Runs that differ in the backend,
the strategy or the number of jobs alone must have equal digests: `--out` checks that too, and exits with 1 if not.

Only the public API is used, so that one file runs on older and newer checkouts alike.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import stretto
from stretto.testing import sample_actions

SLOTS, STEPS, SEED = 5, 40, 11
KILLED_BEFORE = (3, 11, 12, 26)
COUNTS = ("steps", "episodes", "restarts", "truncations")
"""How many steps were replayed is left out: it depends on the clock."""

BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {"backend": "serial"},
    "thread": {"backend": "thread", "workers": 2},
    "process": {"backend": "process", "workers": 2},
    "isolated": {"backend": "process", "workers": 2, "isolate": True},
    "message": {"backend": "process", "workers": 2, "transport": "message"},
}
PROCESSES = ("process", "isolated", "message")
MODES = ("NextStep", "SameStep", "Disabled")


# ---- worlds ----


class Walk(gymnasium.Env[Any, Any]):
    """Walks by its own `np_random`; some steps have infos, and an episode's task is added to what is seen."""

    def __init__(self, length: int = 9) -> None:
        self.observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.length = length
        self.task = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.task = float((options or {}).get("task", 0.0))
        self.place = self.np_random.standard_normal(3)
        return self.see(), {"start": float(self.place[0])}

    def see(self) -> Any:
        return (self.place + self.task).astype(np.float32)

    def step(self, action: Any) -> Any:
        self.place = self.place + self.np_random.standard_normal(3) * (1 + int(action))
        info: dict[str, Any] = {"jump": self.place.copy()} if self.np_random.random() < 0.3 else {}
        if self.np_random.random() < 0.5:
            info |= {"count": int(action), "even": int(action) % 2 == 0}
        return self.see(), float(self.place.sum()), bool(self.np_random.random() < 1 / self.length), False, info


class GlobalWalk(gymnasium.Env[Any, Any]):
    """Walks by the global `random` and `numpy.random`."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), np.float64)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place = np.array([random.gauss(0, 1), np.random.standard_normal()])  # noqa: NPY002
        self.place += float((options or {}).get("task", 0.0))
        return self.place.copy(), {}

    def step(self, action: Any) -> Any:
        self.place = self.place + np.array([random.random() * int(action), np.random.standard_normal()])  # noqa: NPY002
        return self.place.copy(), float(self.place[0]), random.random() < 0.1, False, {}


class Many(gymnasium.Env[Any, Any]):
    """Has spaces inside spaces, texts among them, actions of several parts, and infos of every sort."""

    def __init__(self) -> None:
        pair = spaces.Tuple([spaces.Discrete(9), spaces.MultiBinary(4)])
        self.observation_space = spaces.Dict(
            {"place": spaces.Box(-1e3, 1e3, (2, 2), np.float64), "pair": pair, "word": spaces.Text(8)}
        )
        self.action_space = spaces.Dict({"push": spaces.Box(-1, 1, (2,), np.float32), "way": spaces.Discrete(4)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.task = (options or {}).get("task", "none")
        self.place = self.np_random.random((2, 2))
        return self.see(), {"task": self.task}

    def see(self) -> Any:
        word = "".join(self.np_random.choice(list("abcde"), int(self.np_random.integers(1, 8))))
        pair = (np.int64(self.np_random.integers(9)), self.np_random.integers(0, 2, 4).astype(np.int8))
        return {"place": self.place.copy(), "pair": pair, "word": word}

    def step(self, action: Any) -> Any:
        self.place = self.place + np.asarray(action["push"], np.float64) * (1 + int(action["way"]))
        kinds: list[dict[str, Any]] = [
            {},
            {"text": str(self.task), "inner": {"a": 1, "b": [1, 2]}},
            {"number": np.float32(self.place[0, 0]), "rows": np.arange(3) * int(action["way"])},
            {"inner": {"a": 2.5}, "nothing": None},
        ]
        info = kinds[int(self.np_random.integers(4))]
        over = self.np_random.random()
        return self.see(), float(self.place.mean()), bool(over < 0.06), bool(0.06 < over < 0.12), info


class Pack:
    """PettingZoo's parallel API, without PettingZoo: four agents of two kinds that join and die by turns."""

    metadata = {"name": "pack"}  # noqa: RUF012  as PettingZoo spells it
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = ["cat_0", "dog_0", "cat_1", "dog_1"]
        self.agents: list[str] = []
        self.np_random = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        size = 3 if agent.startswith("cat") else 2
        return spaces.Dict({"seen": spaces.Box(-1e6, 1e6, (size,), np.float32), "age": spaces.Discrete(99)})

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(5) if agent.startswith("cat") else spaces.MultiDiscrete([3, 2])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self.steps, self.task = 0, float((options or {}).get("task", 0.0))
        self.agents = self.possible_agents[:2]
        self.ends = {agent: int(self.np_random.integers(2, 9)) for agent in self.possible_agents}
        return {agent: self._see(agent) for agent in self.agents}, {"cat_0": {"task": self.task}}

    def step(self, actions: dict[str, Any]) -> Any:
        self.steps += 1
        living = list(self.possible_agents) if self.steps == 1 else self.agents
        done = {agent: self.steps >= self.ends[agent] for agent in living}
        rewards = {agent: float(np.sum(actions.get(agent, 0))) + self.np_random.random() for agent in living}
        seen = {agent: self._see(agent) for agent in living}
        infos = {agent: {"left": self.ends[agent] - self.steps} if self.steps % 2 else {} for agent in living}
        self.agents = [agent for agent in living if not done[agent]]
        truncated = {agent: done[agent] and agent.endswith("1") for agent in living}
        terminated = {agent: done[agent] and not truncated[agent] for agent in living}
        return seen, rewards, terminated, truncated, infos

    @property
    def unwrapped(self) -> Pack:
        return self

    def _see(self, agent: str) -> Any:
        seen = self.np_random.standard_normal(3 if agent.startswith("cat") else 2) + self.task
        return {"seen": seen.astype(np.float32), "age": np.int64(self.steps)}

    def close(self) -> None:
        pass


class Ring:
    """A `TurnWorld`: three agents in a ring move one after the other, and see where the others are by now."""

    def __init__(self) -> None:
        self.possible_agents = ["north", "east", "west"]
        self.agents: list[str] = []
        self.metadata: dict[str, Any] = {"name": "ring"}
        self.render_mode = None
        self._seen = spaces.Box(-1e6, 1e6, (4,), np.float64)
        self._moves = spaces.Discrete(3)
        self._np_random = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._seen

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._moves

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if seed is not None:
            self._np_random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.turns, self.wind = 0, float((options or {}).get("task", 0.0))
        self.places = dict(zip(self.agents, self._np_random.standard_normal(3), strict=True))

    def begin_turn(self) -> None:
        self.wind += self._np_random.standard_normal()

    def can_act(self, agent: str) -> bool:
        return True

    def observe(self, agent: str) -> Any:
        return np.array([*self.places.values(), self.wind])

    def act(self, agent: str, action: Any) -> None:
        self.places[agent] += 0.1 * (int(action) - 1) * max(1.0, abs(sum(self.places.values())))

    def end_turn(self) -> stretto.TurnEnd:
        self.turns += 1
        over = self._np_random.random() < 0.12
        lost = {agent: over or (self.turns == 6 and agent == "east") for agent in self.agents}
        end = stretto.TurnEnd(
            {agent: self.places[agent] for agent in self.agents},
            {agent: lost[agent] and not over for agent in self.agents},
            dict.fromkeys(self.agents, over),
            {agent: {"turns": self.turns} if agent == "north" else {} for agent in self.agents},
        )
        self.agents = [agent for agent in self.agents if not lost[agent]]
        return end

    def render(self) -> None:
        return None

    def close(self) -> None:
        pass


def limited_walk() -> Any:
    return TimeLimit(Walk(length=20), 7)


WORLDS: dict[str, Any] = {
    "walk": Walk,
    "global": GlobalWalk,
    "many": Many,
    "limited": limited_walk,
    "cartpole": "CartPole-v1",
    "pack": Pack,
    "ring": Ring,
}


def drawn_task(slot: int, episode: int, stream: np.random.Generator) -> float:
    return slot + 10 * episode + stream.random()


CHOICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tasks": {"tasks": drawn_task},
    "keyed": {"tasks": [1.5, 2.5, 3.5], "episode_seeds": True},
}


# ---- policies ----


class Weighing(stretto.MultiAgentPolicy):
    """Chooses for many agents at once, by what each sees and by how many rows the batch has.

    No product of matrices: with 16 rows and more its last bits depend on an agent's place in the batch, which no plan
    fixes.
    """

    def __init__(self, world: stretto.WorldSpec) -> None:
        super().__init__(world)
        self.weights = np.random.default_rng(3).standard_normal(4096).astype(np.float32)

    class Agent(stretto.AgentPolicy):
        space: spaces.Space[Any]

    def agent_policy(self, agent: str) -> stretto.AgentPolicy:
        made = self.Agent()
        made.space = copy.deepcopy(self.world.action_spaces[agent])
        return made

    def step_batch(self, agent_policies: list[Any], observations: list[Any]) -> list[Any]:
        rows = np.zeros((len(observations), len(self.weights)), np.float32)
        for row, observation in zip(rows, observations, strict=True):
            flat = flattened(observation)
            row[: len(flat)] = flat
        numbers = (rows * self.weights).sum(axis=1).view(np.uint32).astype(np.int64) + len(rows)
        return [sampled(one.space, int(number)) for one, number in zip(agent_policies, numbers, strict=True)]


class _Acting(stretto.AgentPolicy):
    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space, self.count = copy.deepcopy(space), 0

    def by(self, number: int) -> Any:
        return sampled(self.space, number)


class Remembering(stretto.MultiAgentPolicy):
    """Acts by all that it has seen."""

    class Agent(_Acting):
        def step(self, observation: Any) -> Any:
            self.count = self.count * 31 + 1 + int(1000 * float(np.abs(flattened(observation)).sum()))
            return self.by(self.count)

    def agent_policy(self, agent: str) -> stretto.AgentPolicy:
        return self.Agent(self.world.action_spaces[agent])


class Drawing(stretto.MultiAgentPolicy):
    """Acts by numbers from the global generators."""

    class Agent(_Acting):
        def step(self, observation: Any) -> Any:
            return self.by(int(1e6 * (random.random() + np.random.random())))  # noqa: NPY002

    def agent_policy(self, agent: str) -> stretto.AgentPolicy:
        return self.Agent(self.world.action_spaces[agent])


class Raising(stretto.MultiAgentPolicy):
    """Raises in the third step of every second episode, about."""

    class Agent(_Acting):
        def step(self, observation: Any) -> Any:
            if self.count == 0:
                self.bad = self.rng.random() < 0.3
            self.count += 1
            if self.bad and self.count == 3:
                raise ValueError("this is the third step")
            return self.by(self.count)

    def agent_policy(self, agent: str) -> stretto.AgentPolicy:
        return self.Agent(self.world.action_spaces[agent])


class Dying(stretto.MultiAgentPolicy):
    """Ends its process in a third step as often as there are files in the folder that the environment names."""

    class Agent(_Acting):
        def step(self, observation: Any) -> Any:
            self.count += 1
            if self.count == 3:
                for file in Path(os.environ["DIGESTS_DEATHS"]).iterdir():
                    with contextlib.suppress(FileNotFoundError):
                        file.unlink()
                        os.kill(os.getpid(), signal.SIGKILL)
            return self.by(self.count)

    def agent_policy(self, agent: str) -> stretto.AgentPolicy:
        return self.Agent(self.world.action_spaces[agent])


def flattened(observation: Any) -> Any:
    """Return all numbers of an observation, in a row."""
    if isinstance(observation, Mapping):
        return np.concatenate([flattened(observation[key]) for key in sorted(observation)])
    return np.asarray(observation, np.float32).ravel()


def sampled(space: Any, number: int) -> Any:
    space.seed(number % (1 << 31))
    return space.sample()


# ---- digests ----


def digest(value: Any) -> str:
    """Return the digest of a value: types, dtypes, shapes, the order of keys, and every bit."""
    found = hashlib.sha256()
    for piece in pieces(value):
        found.update(len(piece).to_bytes(8, "little"))
        found.update(piece)
    return found.hexdigest()


def pieces(value: Any) -> Iterator[bytes]:
    """Yield what a value is made of."""
    if isinstance(value, (np.ndarray, np.generic)):
        yield f"{type(value).__name__} {value.dtype} {value.shape}".encode()
        if value.dtype.hasobject:
            for one in np.asarray(value).flat:
                yield from pieces(one)
        else:
            yield value.tobytes()
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for key, part in value.items():
            yield from pieces(key)
            yield from pieces(part)
        yield from pieces(getattr(value, "blocks", None))
    elif isinstance(value, (list, tuple)):
        yield f"{'list' if isinstance(value, list) else 'tuple'} {len(value)}".encode()
        for part in value:
            yield from pieces(part)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from pieces(asdict(value))
    elif isinstance(value, str):
        # Whether a worker that is killed between two steps has read its mail yet is up to the clock.
        yield f"str {re.sub(r'died while [a-z ]+', 'died ', value)}".encode()
    elif value is None or isinstance(value, (bytes, bool, int, float)):
        yield f"{type(value).__name__} {value.hex() if isinstance(value, float) else value!r}".encode()
    else:
        raise TypeError(f"a value must have bytes that are the same every time, got {value!r}")


# ---- runs of vector environments ----

Play = Callable[[Any, Callable[[int], None]], Iterator[Any]]


def stepped(envs: Any, before_step: Callable[[int], None]) -> Iterator[Any]:
    """Yield all that a reset and steps give; slots whose episode is over are reset by mask where nobody else does."""
    yield envs.reset(seed=SEED)
    yield masks(envs)
    disabled = envs.metadata["autoreset_mode"].value == "Disabled"
    for number, action in enumerate(sample_actions(envs, STEPS, SEED)):
        before_step(number)
        step = envs.step(action)
        yield tuple(step)
        yield masks(envs)
        over = ended(envs, step)
        if disabled and over.any():
            yield envs.reset(options={"reset_mask": over})
            yield masks(envs)


def sent(envs: Any, before_step: Callable[[int], None]) -> Iterator[Any]:
    """Yield all that a reset and `recv` in the order of `send` give; some slots are ahead of others."""
    yield envs.reset(seed=SEED)
    yield masks(envs)
    front, back = np.array([3, 0]), np.array([1, 4, 2])
    for number, action in enumerate(sample_actions(envs, STEPS // 2, SEED)):
        before_step(number)
        for ids in (front, back):
            envs.send(rows(action, ids), ids)
        for ready in (1, SLOTS - 1):
            yield tuple(envs.recv(ready, ordered=True))
            yield masks(envs)
        envs.send(rows(action, front), front)
        yield tuple(envs.recv(ordered=True))
        yield masks(envs)


def rows(batch: Any, ids: Any) -> Any:
    """Return some rows of a batch of actions."""
    if isinstance(batch, Mapping):
        return {key: rows(part, ids) for key, part in batch.items()}
    return batch[ids]


class Masks:
    """Who can act, kept apart from all other values."""

    def __init__(self, mask: Mapping[str, Any]) -> None:
        self.mask = copy.deepcopy(dict(mask))


def masks(envs: Any) -> Masks | None:
    return Masks(envs.mask) if hasattr(envs, "possible_agents") else None


def ended(envs: Any, step: Any) -> Any:
    """Return the slots whose episode is over: both flags, or nobody left."""
    if hasattr(envs, "possible_agents"):
        return ~np.any(list(envs.mask.values()), axis=0)
    return np.logical_or(step[2], step[3])


def vector_runs() -> Iterator[tuple[str, Callable[[], dict[str, str]]]]:
    """Yield names of runs, and what runs each."""
    for world in WORLDS:
        for choice, chosen in CHOICES.items():
            for mode in MODES:
                how = f"{world}/{choice}/{mode}"
                options = {"autoreset_mode": mode, **chosen}
                for backend in BACKENDS:
                    yield f"play/{how}/{backend}", partial(vector_run, world, backend, options, stepped)
                    # Slots that are over need a reset before they can be sent; what is shown is the same without.
                    if mode != "Disabled" and choice != "tasks":
                        yield f"send/{how}/{backend}", partial(vector_run, world, backend, options, sent)
                for backend in PROCESSES:
                    yield f"kill/{how}/{backend}", partial(vector_run, world, backend, options, stepped, kill=True)
                    if choice != "tasks":
                        cut = {**options, "on_crash": "truncate"}
                        run = partial(vector_run, world, backend, cut, stepped, kill=True)
                        yield f"truncate/{how}/{backend}", run


def vector_run(world: str, backend: str, options: dict[str, Any], play: Play, *, kill: bool = False) -> dict[str, str]:
    with stretto.make_vec(WORLDS[world], SLOTS, **BACKENDS[backend], **options) as envs:
        given = [copy.deepcopy(one) for one in play(envs, partial(killed, envs) if kill else lambda _: None)]
        counts = asdict(envs.statistics())
    if kill and counts["restarts"] == 0:
        raise RuntimeError("workers were killed, and none was restarted")
    found = {
        "values": digest([one for one in given if not isinstance(one, Masks)]),
        "counts": digest({name: counts[name] for name in COUNTS}),
    }
    if several := [one.mask for one in given if isinstance(one, Masks)]:
        found["masks"] = digest(several)
    return found


def killed(envs: Any, number: int) -> None:
    """Kill one worker before some of the steps, and wait until it is dead: it must not answer the next one."""
    if number in KILLED_BEFORE:
        pid = envs.worker_pids[number % len(envs.worker_pids)]
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(psutil.NoSuchProcess):
            while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.0002)


# ---- evaluations ----

MISSIONS = ["foundry_1", "netdefense_meander", "pointgoal", "gym:CartPole-v1"]
STRATEGIES = ("sequential", "threads", "processes", "batched", "adaptive")
EVALUATIONS: dict[str, tuple[list[Any], list[Any], dict[str, Any]]] = {
    "all": (MISSIONS, ["random", Weighing, Remembering, Drawing], {"episodes": 2, "steps": 12}),
    "foundry": (["foundry_1"], ["gatherer", "planner"], {"episodes": 2, "steps": 40}),
    "own": ([Ring, Pack, GlobalWalk], ["random", Weighing, Drawing], {"episodes": 3, "steps": 12}),
    "mix": ([*MISSIONS[:2], Ring], ["random", Weighing, Drawing], {"episodes": 2, "steps": 12, "mix": True}),
    "failures": (MISSIONS, ["random", Raising], {"episodes": 4, "steps": 8}),
    "worst": (MISSIONS[2:], ["random", Raising], {"episodes": 4, "steps": 8, "failed": "worst", "reverse": True}),
}


def evaluations() -> Iterator[tuple[str, Callable[[], dict[str, str]]]]:
    for name in EVALUATIONS:
        for jobs in (0, 1, 2):
            for strategy in STRATEGIES:
                yield f"eval/{name}/{jobs}/{strategy}", partial(evaluation, name, jobs, strategy)
    for strategy in STRATEGIES:
        yield f"eval/deaths/2/{strategy}", partial(deaths, strategy)


def evaluation(name: str, jobs: int, strategy: str) -> dict[str, str]:
    missions, policies, options = EVALUATIONS[name]
    report = stretto.evaluate(missions, policies, jobs=jobs, strategy=strategy, seed=SEED, **options)
    failed = [record.failure for record in report.records if record.failure is not None]
    if bool(failed) != (Raising in policies):
        raise RuntimeError(f"episodes of {name} failed that should not, or none did: {failed[:1]}")
    return digests_of(report)


def deaths(strategy: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "one").touch()
        os.environ["DIGESTS_DEATHS"] = folder
        return digests_of(
            stretto.evaluate("foundry_1", ["random", Dying], jobs=2, strategy=strategy, seed=SEED, episodes=2, steps=8)
        )


def digests_of(report: stretto.Report) -> dict[str, str]:
    """Return a digest for the records of each mission and policy, and one for the summary, without all timing."""
    by_pair: dict[str, list[Any]] = {}
    for record in report.records:
        plain = without_timing(record.as_json())
        if plain["failure"] is not None:
            del plain["failure"]["traceback"]  # it has the lines and paths of a checkout
        by_pair.setdefault(f"{record.mission}/{record.label}", []).append(plain)
    found = {pair: digest(records) for pair, records in by_pair.items()}
    return {**found, "summary": digest(without_timing(report.summary.as_json()))}


def without_timing(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: without_timing(part) for key, part in value.items() if key != "timing"}
    return [without_timing(part) for part in value] if isinstance(value, (list, tuple)) else value


# ---- seeds ----


def seeds() -> dict[str, str]:
    trees = [stretto.SeedTree(root).child(*path) for root in (0, SEED, 1 << 40) for path in ((), ("a", 1), (1, "a", 0))]
    return {"trees": digest([(tree.seed(), tree.entropy(), tree.generator().random(4)) for tree in trees])}


# ---- the command line ----


def run(out: Path, only: str) -> int:
    runs = [("seeds", seeds), *vector_runs(), *evaluations()]
    chosen = [(name, call) for name, call in runs if only in name]
    found: dict[str, str] = {}
    began = time.monotonic()
    for number, (name, call) in enumerate(chosen):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(chosen)}: {name:60}", end="", file=sys.stderr)
        found.update((f"{name}/{part}", text) for part, text in call().items())
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\n{len(found)} digests of {len(chosen)} runs in {time.monotonic() - began:.0f} s")
    return unlike(found)


def unlike(found: Mapping[str, str]) -> int:
    """Print which runs differ from the same one on another backend, or with another strategy and number of jobs."""
    first: dict[str, str] = {}
    count = 0
    for name, text in found.items():
        kind, *words = name.split("/")
        if kind == "eval":
            same = "/".join([words[0], *words[3:]])
        elif kind in ("play", "send"):
            same = "/".join([kind, *words[:3], *words[4:]])
        elif kind == "kill" and words[4] != "counts":
            same = "/".join(["play", *words[:3], *words[4:]])
        else:
            continue
        if found[first.setdefault(same, name)] != text:
            print(f"not the same: {first[same]} and {name}")
            count += 1
    return int(count > 0)


def compare(one: Path, other: Path) -> int:
    left, right = (json.loads(path.read_text()) for path in (one, other))
    for name in sorted({*left, *right}):
        if left.get(name) != right.get(name):
            missing = "" if name in left and name in right else f", not in {other if name in left else one}"
            print(f"differs: {name}{missing}")
    return int(left != right)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="run everything, and write the digests into this file")
    parser.add_argument("--only", default="", help="run what has this in its name")
    parser.add_argument("--compare", type=Path, nargs=2, metavar="FILE", help="say where two files differ")
    arguments = parser.parse_args()
    if arguments.compare:
        return compare(*arguments.compare)
    if arguments.out is None:
        parser.error("one of --out and --compare is needed")
    warnings.simplefilter("ignore")  # episodes that are cut short are digested, not reported
    return run(arguments.out, arguments.only)


if __name__ == "__main__":
    sys.exit(main())
