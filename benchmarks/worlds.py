"""The worlds of the benchmarks: other people's, one whose observation is 100 kB, a heavy one, Foundry with many agents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from stretto.games.foundry import MISSIONS, Foundry
from stretto.games.netdefense import Netdefense

ACTION_BATCHES = 64
"""Random actions are drawn beforehand; so many batches of them are used in turn, the same ones by everybody."""


@dataclass(frozen=True)
class World:
    """A world under the name that the table has for it; `package` is what it needs beside Gymnasium."""

    name: str
    make: Callable[[], gymnasium.Env[Any, Any]]
    package: str | None = None
    least_ratio: float | None = None

    def actions(self, num_envs: int) -> list[np.ndarray[Any, Any]]:
        """Return batches of random actions."""
        env = self.make()
        env.action_space.seed(0)
        batches = [np.stack([env.action_space.sample() for _ in range(num_envs)]) for _ in range(ACTION_BATCHES)]
        env.close()
        return batches


class Frames(gymnasium.Env[np.ndarray[Any, Any], int]):
    """A small arcade game: things move, and every step draws them into a frame of 100,800 bytes."""

    THINGS = 26
    SIZE = 16

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
        self.action_space = spaces.Discrete(3)
        self._background = np.random.default_rng(0).integers(0, 64, (210, 160, 3), np.uint8)
        self._frame = self._background.copy()
        self._places: list[list[int]] = []
        self._paddle = 72
        self._left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        super().reset(seed=seed)
        draw = self.np_random.integers
        self._places = [[int(draw(178)), int(draw(144)), int(draw(1, 4)), int(draw(1, 4))] for _ in range(self.THINGS)]
        self._paddle, self._left = 72, int(draw(200, 400))
        return self._draw(), {}

    def step(self, action: int) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        self._paddle = min(144, max(0, self._paddle + 4 * (int(action) - 1)))
        caught = 0
        for thing in self._places:
            y, x, down, right = thing
            y, x = y + down, x + right
            if not 0 <= x <= 144:
                thing[3], x = -right, thing[1]
            if y > 178:
                caught += abs(x - self._paddle) < self.SIZE
                y = 0
            thing[0], thing[1] = y, x
        self._left -= 1
        return self._draw(), float(caught), self._left == 0, False, {}

    def _draw(self) -> np.ndarray[Any, Any]:
        frame, size = self._frame, self.SIZE
        np.copyto(frame, self._background)
        for i, (y, x, _, _) in enumerate(self._places):
            frame[y : y + size, x : x + size, i % 3] = 255
        frame[200:204, self._paddle : self._paddle + size] = 200
        return frame


class _Process:
    """A process on a host of `LargeNetwork`: an object as a simulation of networks has them by the thousand."""

    __slots__ = ("host", "ports", "sessions")

    def __init__(self, host: list[Any], number: int) -> None:
        self.host, self.ports, self.sessions = host, [number, 22 + number, 80], [[number, 0]]


class LargeNetwork(Netdefense):
    """Netdefense with as many objects as CybORG has (3,123 that the garbage collector follows), and steps as long (2.4 ms).

    Each step looks at all processes of all hosts, and keeps what it has found until the next one, in cycles.
    """

    NETWORK_HOSTS, PROCESSES, LOOKS = 172, 4, 18

    def __init__(self) -> None:
        super().__init__(max_steps=100)
        self._hosts: list[list[Any]] = []
        for number in range(self.NETWORK_HOSTS):
            host: list[Any] = [number]
            host.append([_Process(host, i) for i in range(self.PROCESSES)])
            self._hosts.append(host)
        self._found: list[Any] = []

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        found: list[Any] = []
        for look in range(self.LOOKS):
            open_ports = 0
            for host in self._hosts:
                seen = {}
                for process in host[1]:
                    seen[process.ports[0]] = sum(process.ports) + process.sessions[0][1]
                    process.sessions[0][1] = look
                open_ports += max(seen.values())
                if host[0] % 40 == look:
                    found.append([found, host, seen])
        self._found = found
        return super().step(action)


def make_cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def make_acrobot() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("Acrobot-v1")


def make_hopper() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("Hopper-v5")


def make_minigrid() -> gymnasium.Env[Any, Any]:
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(make_minigrid_with_text())


def make_minigrid_with_text() -> gymnasium.Env[Any, Any]:
    import minigrid  # noqa: F401  registers its worlds

    return gymnasium.make("MiniGrid-Empty-8x8-v0")


WORLDS = {
    world.name: world
    for world in (
        World("CartPole", make_cartpole, least_ratio=1.6),
        World("Acrobot", make_acrobot),
        World("Hopper", make_hopper, "mujoco"),
        World("MiniGrid", make_minigrid, "minigrid"),
        # Its observation is a Dict with a text, which most of the others cannot carry.
        World("MiniGrid+text", make_minigrid_with_text, "minigrid"),
        World("100 kB", Frames, least_ratio=1.5),
    )
}


HEAVY = World("heavy", LargeNetwork)
ALL_WORLDS = {**WORLDS, HEAVY.name: HEAVY}


def foundry_1(cogs: int) -> Foundry:
    """Return the world of the mission foundry_1, with so many cogs."""
    return Foundry(**{**MISSIONS["foundry_1"]["kwargs"], "cogs": cogs})


def simple_spread(agents: int) -> Any:
    """MPE's simple_spread with so many agents, each of which sees 6 numbers for each of them; episodes of 25 steps."""
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(N=agents, max_cycles=25)
