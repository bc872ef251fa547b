"""A mission of cogames as a world by agent: observations stay the arrays that mettagrid writes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from mettagrid.config.mettagrid_c_config import convert_to_cpp_game_config, rename_map_agents
from mettagrid.config.mettagrid_config import MettaGridConfig
from mettagrid.map_builder.map_builder import HasSeed
from mettagrid.mettagrid_c import MettaGrid
from mettagrid.policy.policy_env_interface import PolicyEnvInterface
from mettagrid.simulator.replay_log_writer import InMemoryReplayWriter
from mettagrid.simulator.simulator import Simulation, Simulator

from stretto.adapters.base import NativeWorld, actions_of
from stretto.core import Action, AgentId, Outcome, WorldSpec, WorldStatistics
from stretto.errors import UsageError
from stretto.seeding import SEED_BITS

__calls_user_code__ = True

ENVIRONMENT = "policy_env"
"""The fact about a world that is mettagrid's own description of it, which its policies are built with."""


class CogsWorld(NativeWorld):
    """A mission of cogames, played by mettagrid.

    What an agent observes is its row of mettagrid's array: tokens of three bytes. It does a primary action, and perhaps
    changes its vibe; `action_names` says which number is what. mettagrid numbers them in the same way where it is trained
    with. An episode is over for all agents at once.

    Attributes:
        engine: what plays the episode in mettagrid, which its own `Simulation` is a wrapper of.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012  as Gymnasium spells it
    render_mode = "ansi"

    def __init__(self, config: MettaGridConfig) -> None:
        super().__init__(self, self, stream="generator")
        self.config, self.generator = config, np.random.default_rng()
        self.engine: Any = None
        self._converted: tuple[Any, Any] | None = None
        self._episode = _Episode(self.config, 0, [])
        interface = PolicyEnvInterface.from_mg_cfg(config)
        if interface.talk.enabled:
            raise UsageError(
                "missions in which agents talk are not played yet, since talk is no part of an action here; "
                "leave out the variant talk"
            )
        self._spec = described(interface)
        self.possible_agents = list(self._spec.agents)
        choices = choices_of(interface)
        names = [action.name for action in config.game.actions.actions()]
        ids = {name: number for number, name in enumerate(names)}
        self._primary = [ids[primary] for primary, _ in choices]
        self._vibes = [0 if vibe is None else ids[vibe] for _, vibe in choices]

    def spec(self) -> WorldSpec:
        return self._spec

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        if seed is None:
            seed = int(self.generator.integers(1 << SEED_BITS))
        else:
            self.generator = np.random.default_rng(seed)
        self.close()
        self._episode = _Episode(self.config, seed, [])
        self.engine = inner = self._begin(seed)
        # mettagrid writes into the same arrays in every step.
        self._rows = dict(zip(self.possible_agents, inner.observations(), strict=True))
        self._ends = inner.terminals(), inner.truncations()
        self._actions, self._vibe_actions = inner.actions(), inner.vibe_actions()
        self._totals = [0.0] * len(self.possible_agents)
        self._summed: dict[str, float] = {}
        return Outcome(self._rows, {}, {}, {}, {}, self._spec.agents)

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        agents, inner = self._spec.agents, self.engine
        chosen = [int(action) for action in actions_of(agents, actions).values()]
        self._episode.chosen.append(chosen)
        self._actions[:] = [self._primary[one] for one in chosen]
        self._vibe_actions[:] = [self._vibes[one] for one in chosen]
        inner.step()
        for name, value in inner.get_episode_stats()["game"].items():
            self._summed[name] = self._summed.get(name, 0.0) + value
        terminated, truncated = self._ends[0].tolist(), self._ends[1].tolist()
        # The sum of these differences is mettagrid's own total, to the bit: it adds up in single precision.
        before, self._totals = self._totals, inner.get_episode_rewards().tolist()
        rewards = {agent: now - last for agent, now, last in zip(agents, self._totals, before, strict=True)}
        return Outcome(
            self._rows,
            rewards,
            dict(zip(agents, terminated, strict=True)),
            dict(zip(agents, truncated, strict=True)),
            {},
            () if all(terminated) or all(truncated) else agents,
        )

    def statistics(self) -> WorldStatistics:
        """Return mettagrid's statistics: `game.NAME`, `mean.NAME` (of the game, over all steps), `agent.NAME` by agent."""
        if self.engine is None:
            return {}
        found: dict[str, float | Mapping[AgentId, float]] = {}
        given = self.engine.get_episode_stats()
        steps = max(1, len(self._episode.chosen))
        for name, value in given["game"].items():
            found[f"game.{name}"] = float(value)
        for name, value in self._summed.items():
            found[f"mean.{name}"] = value / steps
        for name in sorted({name for one in given["agent"] for name in one}):
            by_agent = zip(self._spec.agents, given["agent"], strict=True)
            found[f"agent.{name}"] = {agent: float(one.get(name, 0.0)) for agent, one in by_agent}
        return found

    def save_replay(self, path: str) -> str:
        """Play the episode's actions again, and write what happens in mettagrid's format, for its viewer."""
        path = f"{path}.json.z"
        replay = self._episode.record(self._primary, self._vibes)
        replay.write_replay(Path(path).resolve().as_uri())
        return path

    def render(self) -> str | None:
        """Return the map as text."""
        if self.engine is None:
            return None
        from mettagrid.renderer.miniscope.buffer import MapBuffer
        from mettagrid.renderer.miniscope.symbol import DEFAULT_SYMBOL_MAP

        symbols = {**DEFAULT_SYMBOL_MAP, **self.config.game.render.symbols}
        size = self.engine.map_height, self.engine.map_width
        everywhere = -1, -1, -1, -1
        text: str = MapBuffer(symbols, *size).render_full_map(self.engine.grid_objects(*everywhere, []))
        return text

    def close(self) -> None:
        self.engine = None

    def _begin(self, seed: int) -> MettaGrid:
        """Return what plays an episode from its start.

        mettagrid's `Simulation` turns the configuration into that of the engine in each episode, which takes half of the
        time in which one begins. It is the same for every map.
        """
        if self._converted is None:
            self._converted = convert_to_cpp_game_config(self.config.game)
        converted, renamed = self._converted
        builder = with_map_seed(self.config, seed).game.map_builder
        cells = builder.create().build_for_num_agents(self.config.game.num_agents).grid.tolist()
        return MettaGrid(converted, rename_map_agents(cells, renamed) if renamed else cells, seed)


class _Episode:
    """All that an episode follows from: a configuration, a seed and the actions so far."""

    def __init__(self, config: MettaGridConfig, seed: int, chosen: list[list[int]]) -> None:
        self._config, self._seed, self.chosen = config, seed, chosen

    def begin(self, *handlers: Any) -> Simulation:
        """Return the simulation at the episode's start, with a map of this seed unless the mission has one."""
        simulator = Simulator()
        for handler in handlers:
            simulator.add_event_handler(handler)
        return simulator.new_simulation(with_map_seed(self._config, self._seed), self._seed)

    def record(self, primary: list[int], vibes: list[int]) -> Any:
        """Play it again; return what mettagrid writes down of it."""
        writer = InMemoryReplayWriter()
        simulation = self.begin(writer)
        inner = simulation._c_sim  # noqa: SLF001  as above
        for chosen in self.chosen:
            inner.actions()[:] = [primary[one] for one in chosen]
            inner.vibe_actions()[:] = [vibes[one] for one in chosen]
            simulation.step()
        if not simulation.is_done():  # whoever played it stopped earlier than the mission does
            writer.on_episode_end()
        (replay,) = writer.get_completed_replays()
        return replay


def with_map_seed(config: MettaGridConfig, seed: int | None) -> MettaGridConfig:
    """Return a configuration whose map follows from this seed, unless it has one, or none at all."""
    builder = config.game.map_builder
    if seed is None or not isinstance(builder, HasSeed) or builder.seed is not None:
        return config
    # mettagrid copies the builder before it builds, so nobody writes into what is shared here.
    seeded = builder.model_copy(update={"seed": seed})
    changed: MettaGridConfig = config.model_copy(
        update={"game": config.game.model_copy(update={"map_builder": seeded})}
    )
    return changed


def described(interface: PolicyEnvInterface) -> WorldSpec:
    """Return our description of a mission that mettagrid describes in its own way."""
    agents = tuple(f"agent_{i}" for i in range(interface.num_agents))
    choices = choices_of(interface)
    seen = [interface.observation_space for _ in agents]  # each has its own, with its own generator
    return WorldSpec(
        agents,
        dict(zip(agents, seen, strict=True)),
        {agent: spaces.Discrete(len(choices)) for agent in agents},
        tuple(name_of(*choice) for choice in choices),
        {ENVIRONMENT: interface},
    )


def choices_of(interface: PolicyEnvInterface) -> list[tuple[str, str | None]]:
    """Return what each action number means: first all primary actions alone, then each with each change of vibe."""
    alone = [(name, None) for name in interface.action_names]
    return [*alone, *product(interface.action_names, interface.vibe_action_names)]


def name_of(primary: str, vibe: str | None) -> str:
    """Return what an action is called. One that only changes the vibe has the name that cogames gives it."""
    if vibe is None:
        return primary
    return vibe if primary == "noop" else f"{primary}+{vibe}"
