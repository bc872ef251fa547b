"""Policies that the tests of evaluation play: each is about one thing that a policy may do."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from stretto.core import AgentPolicy, MultiAgentPolicy, WorldSpec


class _Some(AgentPolicy):
    """Acts by a number: the action space's own sample, seeded by it."""

    def __init__(self, space: Any) -> None:
        self.space = space
        self.count = 0

    def by(self, number: int) -> Any:
        self.space.seed(number % (1 << 31))
        return self.space.sample()


class Stateful(MultiAgentPolicy):
    """Acts by how often it acted, and by all that it saw."""

    class Agent(_Some):
        def step(self, observation: Any) -> Any:
            seen = sum(float(np.sum(part)) for part in _arrays(observation))
            self.count = self.count * 31 + 1 + int(abs(seen) * 1000)
            return self.by(self.count)

    def agent_policy(self, agent: str) -> AgentPolicy:
        return self.Agent(_own(self.world, agent))


class Drawing(MultiAgentPolicy):
    """Acts by numbers from the generator that it is given."""

    class Agent(_Some):
        def step(self, observation: Any) -> Any:
            return self.by(int(self.rng.integers(1 << 30)))

    def agent_policy(self, agent: str) -> AgentPolicy:
        return self.Agent(_own(self.world, agent))


class GlobalDrawing(MultiAgentPolicy):
    """Acts by numbers from the global generators, and its `reset` takes no argument."""

    class Agent(_Some):
        def reset(self) -> None:
            self.first = random.random()

        def step(self, observation: Any) -> Any:
            return self.by(int(1e6 * (self.first + random.random() + np.random.random())))

    def agent_policy(self, agent: str) -> AgentPolicy:
        return self.Agent(_own(self.world, agent))


class Faulty(MultiAgentPolicy):
    """Does something bad once: in the step `at` of the episode in which a number drawn at its start is below `share`.

    `how` is "raise", "die" or "hang"; with a `folder` it dies only as often as files can be taken from it.
    """

    def __init__(self, world: WorldSpec, how: str = "raise", share: float = 0.5, at: int = 3, folder: str = "") -> None:
        super().__init__(world)
        self.how, self.share, self.at, self.folder = how, share, at, folder

    class Agent(_Some):
        owner: Faulty

        def step(self, observation: Any) -> Any:
            if self.count == 0:
                self.bad = self.rng.random() < self.owner.share
            self.count += 1
            if self.bad and self.count == self.owner.at:
                self.owner.act_up()
            return self.by(self.count)

    def agent_policy(self, agent: str) -> AgentPolicy:
        made = self.Agent(_own(self.world, agent))
        made.owner = self
        return made

    def act_up(self) -> None:
        if self.folder:
            try:
                next(Path(self.folder).iterdir()).unlink()
            except (StopIteration, FileNotFoundError):
                return
        match self.how:
            case "raise":
                raise ValueError("this policy has had enough")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                time.sleep(3600)


class Sleeping(MultiAgentPolicy):
    """Waits before it acts: always or in step `at` alone, for all agents or for `who` alone."""

    def __init__(self, world: WorldSpec, seconds: float = 0.05, who: str = "", at: int | None = None) -> None:
        super().__init__(world)
        self.seconds, self.who, self.at = seconds, who, at

    class Agent(_Some):
        seconds = 0.0
        at: int | None = None

        def step(self, observation: Any) -> Any:
            if self.at in (None, self.count):
                time.sleep(self.seconds)
            self.count += 1
            return self.by(self.count)

    def agent_policy(self, agent: str) -> AgentPolicy:
        made = self.Agent(_own(self.world, agent))
        made.seconds = self.seconds if self.who in ("", agent) else 0.0
        made.at = self.at
        return made


class Fixed(MultiAgentPolicy):
    """Acts as `Sleeping` does, but for one agent, which always does the same."""

    def __init__(self, world: WorldSpec, who: str = "", action: int = 0) -> None:
        super().__init__(world)
        self.who, self.action = who, action

    class Agent(AgentPolicy):
        def __init__(self, action: int) -> None:
            self.action = action

        def step(self, observation: Any) -> Any:
            return self.action

    def agent_policy(self, agent: str) -> AgentPolicy:
        return self.Agent(self.action) if agent == self.who else Sleeping.Agent(_own(self.world, agent))


def _own(world: WorldSpec, agent: str) -> Any:
    import copy

    return copy.deepcopy(world.action_spaces[agent])


def _arrays(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [array for key in sorted(value) for array in _arrays(value[key])]
    if isinstance(value, tuple):
        return [array for part in value for array in _arrays(part)]
    return [np.asarray(value)]
