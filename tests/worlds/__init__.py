"""Small worlds that the tests run: each is about one thing that a world may do."""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from stretto.core import TurnEnd

Start = tuple[Any, dict[str, Any]]
Result = tuple[Any, float, bool, bool, dict[str, Any]]


class World(gymnasium.Env[Any, Any]):
    """Counts its steps from 0; subclasses say what one does, in `move`."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium spells it

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(-1e6, 1e6, (2,), np.float64)
        self.action_space: spaces.Space[Any] = spaces.Discrete(4)
        self.render_mode = render_mode
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        super().reset(seed=seed)
        self.steps = 0
        return self.see(), {}

    def step(self, action: Any) -> Result:
        self.steps += 1
        return self.move(action)

    def see(self) -> Any:
        return np.array([self.steps, 0.0])

    def move(self, action: Any) -> Result:
        return self.see(), 1.0, False, False, {}

    def render(self) -> Any:
        return np.full((2, 2, 3), self.steps, np.uint8)


class CountTo(World):
    """Observes (steps, last action) and terminates at step `limit`; truncates there instead if told to."""

    def __init__(self, limit: int = 5, truncates: bool = False, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.limit, self.truncates = limit, truncates
        self.last_action = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        self.last_action = 0
        return super().reset(seed=seed, options=options)

    def see(self) -> Any:
        return np.array([self.steps, self.last_action], np.float64)

    def move(self, action: Any) -> Result:
        self.last_action = int(action)
        over = self.steps >= self.limit
        return self.see(), float(action), over and not self.truncates, over and self.truncates, {}

    def count(self) -> int:
        return self.steps

    def add_to_limit(self, more: int) -> int:
        self.limit += more
        return self.limit


class Drift(World):
    """A walk driven by its own `np_random`; episodes of random length; an info now and then."""

    def __init__(self, length: int = 12, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
        self.length = length
        self.state = np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        super().reset(seed=seed, options=options)
        self.state = self.np_random.standard_normal(3).astype(np.float32)
        return self.see(), {"start": float(self.state[0])}

    def see(self) -> Any:
        return self.state.copy()

    def move(self, action: Any) -> Result:
        self.state = (self.state + self.np_random.standard_normal(3) * (1 + int(action))).astype(np.float32)
        info = {"jump": self.state.copy()} if self.np_random.random() < 0.3 else {}
        over = self.np_random.random() < 1 / self.length
        return self.see(), float(self.state.sum()), bool(over), False, info


class GlobalDrift(World):
    """A walk driven by the global `random` and `numpy.random` (and torch's generator, if asked)."""

    def __init__(self, length: int = 12, torch: bool = False) -> None:
        super().__init__()
        self.length, self.torch = length, torch
        self.state = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        super().reset(seed=seed, options=options)
        self.state = self._draw()
        return self.see(), {}

    def see(self) -> Any:
        return self.state.copy()

    def move(self, action: Any) -> Result:
        self.state = self.state + self._draw()
        over = random.random() < 1 / self.length
        return self.see(), float(self.state[0]), over, False, {}

    def _draw(self) -> Any:
        drawn = np.array([random.gauss(0, 1), np.random.standard_normal()])
        if self.torch:
            import torch

            drawn[1] += float(torch.rand(()))
        return drawn


class TaskWorld(World):
    """Observes (steps, its task, `extra` of its options); an episode lasts `length` steps."""

    def __init__(self, length: int = 3) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-1e6, 1e6, (3,), np.float64)
        self.length = length
        self.options: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        self.options = options or {}
        return super().reset(seed=seed)

    def see(self) -> Any:
        return np.array([self.steps, self.options.get("task", -1), self.options.get("extra", -1)], np.float64)

    def move(self, action: Any) -> Result:
        return self.see(), 0.0, self.steps >= self.length, False, {}


class KeepsActions(World):
    """Keeps every action that it is given, as objects, and shows the sum of the oldest four."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-10, 10, (2,), np.float32)
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.kept: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        self.kept = []
        return super().reset(seed=seed, options=options)

    def see(self) -> Any:
        return np.sum(self.kept[:4], axis=0, dtype=np.float32) if self.kept else np.zeros(2, np.float32)

    def move(self, action: Any) -> Result:
        self.kept.append(action)
        return self.see(), 0.0, self.steps >= 6, False, {}


class ReusesItsArray(World):
    """Writes every observation into one array, as fast worlds do."""

    def __init__(self, length: int = 3) -> None:
        super().__init__()
        self.length, self.array = length, np.zeros(2)

    def see(self) -> Any:
        self.array[:] = self.steps, -self.steps
        return self.array

    def move(self, action: Any) -> Result:
        return self.see(), 1.0, self.steps >= self.length, False, {}


class Frames(World):
    """Observes a frame of 600 kB, which has the number of the step everywhere; episodes end by their own `np_random`."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (1000, 600), np.uint8)

    def see(self) -> Any:
        return np.full((1000, 600), self.steps, np.uint8)

    def move(self, action: Any) -> Result:
        return self.see(), float(action), bool(self.np_random.random() < 0.02), False, {}


class Returns(World):
    """Returns at step `at_step` what it was given instead: an observation, a reward, or all five values."""

    def __init__(self, at_step: int = 1, **instead: Any) -> None:
        super().__init__()
        self.observation_space = instead.pop("space", spaces.Box(-10, 10, (2,), np.float32))
        self.at_step, self.instead = at_step, instead

    def see(self) -> Any:
        return np.zeros(self.observation_space.shape or (), self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        observation, info = super().reset(seed=seed, options=options)
        return (self.instead["observation"] if self.at_step == 0 else observation), info

    def move(self, action: Any) -> Any:
        if self.steps != self.at_step:
            return self.see(), 0.0, False, False, {}
        whole = (self.instead.get("observation", self.see()), self.instead.get("reward", 0.0))
        return self.instead.get("result", (*whole, self.instead.get("terminated", False), False, {}))


class Echo(World):
    """Shows its last action as it came: for spaces of every sort."""

    def __init__(self, space: spaces.Space[Any], length: int = 4) -> None:
        super().__init__()
        self.observation_space, self.action_space = copy.deepcopy(space), copy.deepcopy(space)
        self.length = length

    def see(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(1 << 31)))
        return self.observation_space.sample()

    def move(self, action: Any) -> Result:
        given = np.asarray(action) if isinstance(self.action_space, spaces.Box) else action
        assert self.action_space.contains(given), f"{action!r} is not in {self.action_space}"
        return action, 1.0, self.steps >= self.length, False, {}


class Words(spaces.Space[Any]):
    """A space that only its author knows, as MiniGrid's MissionSpace: no shape and no type."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return ("go", int(self.np_random.integers(10)))

    def contains(self, x: Any) -> bool:
        return isinstance(x, tuple) and len(x) == 2 and x[0] == "go"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Words)

    __hash__ = None  # type: ignore[assignment]


class Incomparable(Words):
    """Gymnasium refuses worlds whose spaces do not say that they are equal."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]


# ---- worlds that go wrong; `steps` counts from 1 in an episode ----


class Raiser(Drift):
    """Raises at step `at_step` of every episode (0: at reset; -1: while it is built).

    `exception` is an instance, a class or any function that raises or returns what is to be raised.
    """

    def __init__(self, at_step: int, exception: Any = ValueError, length: int = 1000) -> None:
        super().__init__(length)
        self.at_step, self.exception = at_step, exception
        if at_step < 0:
            self._raise()

    def _raise(self) -> None:
        if isinstance(self.exception, BaseException):
            raise self.exception
        raise (self.exception("the world's own words") if isinstance(self.exception, type) else self.exception())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        if self.at_step == 0:
            self._raise()
        return super().reset(seed=seed, options=options)

    def move(self, action: Any) -> Result:
        if self.steps == self.at_step:
            self._raise()
        return super().move(action)


class CannotBePickled(Exception):
    """Holds a lock, which no pickle can."""

    def __init__(self, words: str = "held") -> None:
        super().__init__(words)
        self.lock = threading.Lock()


class TakesOtherArguments(Exception):
    """Its constructor takes other arguments than it keeps, so that a pickle of it cannot be read."""

    def __init__(self, left: str, right: str = "right") -> None:
        super().__init__(f"{left} and {right}", left)
        self.left = left

    def __reduce__(self) -> Any:
        return (TakesOtherArguments, ())


class Slow(Drift):
    """Every step takes `seconds`: of waiting, or of work if `busy`."""

    def __init__(self, seconds: float = 0.005, busy: bool = False, length: int = 12) -> None:
        super().__init__(length)
        self.seconds, self.busy = seconds, busy

    def move(self, action: Any) -> Result:
        if self.busy:
            until = time.perf_counter() + self.seconds
            while time.perf_counter() < until:
                pass
        else:
            time.sleep(self.seconds)
        return super().move(action)


def makes(world: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """Return a factory of a world with these arguments."""
    return lambda: world(*args, **kwargs)


# ---- several agents ----


class Crowd:
    """Four agents of two kinds that join and die by turns: PettingZoo's parallel API, without PettingZoo.

    Agent number k joins at step k // 2 and dies at a random step; the episode is over when nobody is left.
    """

    metadata = {"name": "crowd", "render_modes": ["rgb_array"]}  # noqa: RUF012  as PettingZoo spells it
    render_mode = "rgb_array"

    def __init__(self, length: int = 8) -> None:
        self.possible_agents = ["lion_0", "mouse_0", "lion_1", "mouse_1"]
        self.agents: list[str] = []
        self.length = length
        self.np_random = np.random.default_rng(0)
        self.steps = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        seen = spaces.Box(-1e6, 1e6, (3 if agent.startswith("lion") else 2,), np.float32)
        mask = spaces.Box(0, 1, (5 if agent.startswith("lion") else 3,), np.int8)
        return spaces.Dict({"observation": seen, "action_mask": mask})

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(5) if agent.startswith("lion") else spaces.MultiDiscrete([3, 2])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self.steps = 0
        self.agents = ["lion_0", "mouse_0"]
        self.ends = {agent: int(self.np_random.integers(2, self.length)) for agent in self.possible_agents}
        return {agent: self._see(agent) for agent in self.agents}, {"lion_0": {"task": (options or {}).get("task", -1)}}

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents), (sorted(actions), self.agents)
        self.steps += 1
        if self.steps == 1:
            self.agents = list(self.possible_agents)
        living = list(self.agents)
        done = {agent: self.steps >= self.ends[agent] for agent in living}
        rewards = {agent: float(np.sum(actions.get(agent, 0))) + self.np_random.random() for agent in living}
        observations = {agent: self._see(agent) for agent in living}
        self.agents = [agent for agent in living if not done[agent]]
        infos = {agent: {"left": self.ends[agent] - self.steps} if self.steps % 2 else {} for agent in living}
        truncated = {agent: done[agent] and agent.endswith("1") for agent in living}
        terminated = {agent: done[agent] and not truncated[agent] for agent in living}
        return observations, rewards, terminated, truncated, infos

    def _see(self, agent: str) -> Any:
        space: Any = self.observation_space(agent)
        seen = self.np_random.standard_normal(space["observation"].shape).astype(np.float32)
        mask = (self.np_random.random(space["action_mask"].shape) < 0.5).astype(np.int8)
        return {"observation": seen, "action_mask": mask}

    def state(self) -> Any:
        return np.array([self.steps, len(self.agents)], np.float32)

    def render(self) -> Any:
        return np.full((2, 2, 3), self.steps, np.uint8)

    def close(self) -> None:
        pass


class Timetable:
    """A `TurnWorld` of agents a, b and c that follows a table: a row a turn, who can act in it, and who ends with it.

    "ab-c" is a turn in which a and b can act, and after which c is gone. Turn number t gives everybody who is there 2**t,
    so that a sum tells which turns it is of, and 100 times what it did. An agent observes the turn, how many have acted in
    it, and how many in all. After b has acted, c cannot act in that turn.
    """

    possible_agents = ("a", "b", "c")
    metadata: dict[str, Any] = {"name": "timetable"}  # noqa: RUF012  as PettingZoo spells it
    render_mode = None

    def __init__(self, table: str) -> None:
        self.rows = [(row.partition("-")[0], row.partition("-")[2]) for row in table.split()]
        self.agents: list[str] = []
        self._np_random = np.random.default_rng(0)
        self.looks = 0
        self.seen, self.acted = spaces.Box(0, 1e6, (3,), np.float32), spaces.Discrete(10)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.seen

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.acted

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if seed is not None:
            self._np_random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.turn, self.acts, self.done = -1, 0, {}

    def begin_turn(self) -> None:
        self.turn += 1
        self.done: dict[str, int] = {}

    def can_act(self, agent: str) -> bool:
        return agent in self.rows[self.turn][0] and agent in self.agents and not (agent == "c" and "b" in self.done)

    def observe(self, agent: str) -> Any:
        self.looks += 1
        return np.array([self.turn, len(self.done), self.acts], np.float32)

    def act(self, agent: str, action: Any) -> None:
        assert agent not in self.done
        self.done[agent] = int(action)
        self.acts += 1

    def end_turn(self) -> TurnEnd:
        here, ends = list(self.agents), self.rows[self.turn][1]
        self.agents = [agent for agent in here if agent not in ends]
        rewards = {agent: 2.0**self.turn + 100 * self.done.get(agent, 0) for agent in here}
        flags = {agent: agent in ends for agent in here}
        infos = {agent: {f"turn {self.turn}": self.turn} for agent in here}
        return TurnEnd(rewards, flags, dict.fromkeys(here, False), infos)

    def render(self) -> Any:
        return None

    def close(self) -> None:
        pass


class LowBits:
    """Agents whose rewards, and what they see next, follow from the last bits of their actions: PettingZoo's parallel API.

    Every second agent dies a step before the others. With `inputs` of two sizes, agents observe them by turns.
    """

    metadata = {"name": "low bits", "render_modes": []}  # noqa: RUF012  as PettingZoo spells it
    render_mode = None

    def __init__(self, agents: int = 6, inputs: tuple[int, ...] = (27,), length: int = 4) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(agents)]
        self.agents: list[str] = []
        self.inputs, self.length, self.steps = inputs, length, 0
        self.np_random = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        number = self.possible_agents.index(agent)
        return spaces.Box(-100, 100, (self.inputs[number % len(self.inputs)],), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-np.inf, np.inf, (5,), np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self.steps, self.agents = 0, list(self.possible_agents)
        return self._seen(dict.fromkeys(self.agents, 0)), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.steps += 1
        bits = {agent: int(action.view(np.int32).astype(np.int64).sum()) % 1009 for agent, action in actions.items()}
        odd = self.possible_agents[1::2]
        done = {agent: self.steps >= self.length - (agent in odd) for agent in actions}
        self.agents = [agent for agent in actions if not done[agent]]
        rewards = {agent: float(number) for agent, number in bits.items()}
        return self._seen(bits), rewards, done, dict.fromkeys(actions, False), {agent: {} for agent in actions}

    def _seen(self, bits: dict[str, int]) -> dict[str, Any]:
        seen = {}
        for agent, number in bits.items():
            size: Any = self.observation_space(agent).shape
            seen[agent] = (self.np_random.standard_normal(size) + number / 1009).astype(np.float32)
        return seen

    def close(self) -> None:
        pass
