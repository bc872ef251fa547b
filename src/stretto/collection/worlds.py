"""VectorWorlds: the worlds of a vector environment, behind whatever workers it has, as a rollout plays them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from stretto.adapters.agents import as_agents
from stretto.adapters.blocks import AgentKind
from stretto.adapters.gymnasium import ONLY_AGENT
from stretto.core import Action, AgentId, NextEpisode, Outcome, WorldSpec
from stretto.envs import messages
from stretto.envs.infos import entries
from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.envs.vector import VectorEnv
from stretto.errors import UsageError
from stretto.spaces import row_of
from stretto.workers.requests import Request


class VectorWorlds:
    """Plays the slots of a vector environment that does not reset by itself.

    It gives the same as `adapters.local.LocalWorlds`, wherever the worlds are, and although their workers die: but what
    is observed has the types of its space, also where a world returns others, and agents act in the order of
    `spec.agents`. What a world raises is its result.
    """

    def __init__(self, envs: VectorEnv | MultiAgentVectorEnv) -> None:
        if envs.metadata["autoreset_mode"] is not AutoresetMode.DISABLED:
            mode = envs.metadata["autoreset_mode"].value
            raise UsageError(
                f"who plays episodes resets the worlds, which must not reset themselves, got autoreset_mode={mode!r}; "
                f"pass autoreset_mode='Disabled' to make_vec"
            )
        self.envs, self._engine = envs, envs.engine
        self._kinds: list[AgentKind] | None = envs.kinds if isinstance(envs, MultiAgentVectorEnv) else None
        self.count = envs.num_envs
        self.spec: WorldSpec
        self.spec, self._has_statistics = envs.map(_describe)[0]
        self._rows = {} if self._kinds is None else _rows(self._kinds, self.spec.agents)
        self._there: dict[int, list[AgentId]] = {}

    def reset(self, episodes: Mapping[int, NextEpisode]) -> dict[int, Outcome | BaseException]:
        seeds: list[int | None] = [None] * self.count
        options: list[dict[str, Any] | None] = [None] * self.count
        for slot, episode in episodes.items():
            seeds[slot] = episode.seed
            options[slot] = None if episode.options is None else dict(episode.options)
            self._there[slot] = []
        slots = list(episodes)
        with self._engine.alone:
            return self._outcomes(slots, self._engine.reset_each(seeds, options, slots))

    def step(self, actions: Mapping[int, Mapping[AgentId, Action]]) -> dict[int, Outcome | BaseException]:
        slots = list(actions)
        with self._engine.alone:
            return self._outcomes(slots, self._engine.step_each(self._packed(list(actions.values())), slots))

    def _packed(self, actions: Sequence[Mapping[AgentId, Action]]) -> list[Any]:
        """Lay actions, which were checked one by one, into one array a leaf; who does not act has zeros."""
        layout = self._engine.state.actions
        if layout.loose:
            return [given[ONLY_AGENT] for given in actions] if self._kinds is None else list(actions)
        arrays = [np.zeros(shape, dtype) for shape, dtype in layout.shapes(len(actions))]
        for leaf, array in zip(layout.fixed, arrays, strict=True):
            for row, given in enumerate(actions):
                if self._kinds is None:
                    array[row] = leaf.get(given[ONLY_AGENT])
                    continue
                kind, *path = leaf.path
                for j, agent in enumerate(self._kinds[kind].agents):
                    if agent in given:
                        array[row, j] = _at(path, given[agent])
        return arrays

    def _outcomes(self, slots: Sequence[int], requests: Iterable[Request]) -> dict[int, Outcome | BaseException]:
        found: dict[int, Outcome | BaseException] = {}
        for slot, request in zip(slots, requests, strict=True):
            if request.error is not None:
                found[slot] = request.error
            else:
                infos = [] if request.value is None else entries(request.value.infos)
                info = infos[0][1] if infos else {}
                found[slot] = self._outcome(slot, info) if self._kinds is None else self._by_agent(slot, info)
        return found

    def _outcome(self, slot: int, info: dict[str, Any]) -> Outcome:
        """Return what the only agent of a slot was given."""
        observation, reward, terminated, truncated = self._engine.state.row(slot)
        infos, acting = {ONLY_AGENT: info}, (() if terminated or truncated else (ONLY_AGENT,))
        if not self._there[slot]:
            self._there[slot] = [ONLY_AGENT]
            return Outcome({ONLY_AGENT: observation}, {}, {}, {}, infos, acting)
        return Outcome(
            {ONLY_AGENT: observation},
            {ONLY_AGENT: reward},
            {ONLY_AGENT: terminated},
            {ONLY_AGENT: truncated},
            infos,
            acting,
        )

    def _by_agent(self, slot: int, infos: dict[str, Any]) -> Outcome:
        """Return what all agents of a slot were given, from their blocks."""
        row, _, _, crashed = self._engine.state.row(slot)
        there, left, acting = self._there[slot], [], []
        observations, rewards, terminated, truncated = {}, {}, {}, {}
        for agent, (i, k, j) in self._rows.items():
            alive = bool(row["alive"][i])
            observed = alive or row["terminated"][i] or row["truncated"][i]
            if observed:
                observations[agent] = row_of(self.spec.observation_spaces[agent], row["blocks"][k], j)
            if there and (observed or agent in there):  # also who has just joined
                rewards[agent] = float(row["reward"][i])
                terminated[agent] = bool(row["terminated"][i])
                truncated[agent] = bool(row["truncated"][i]) or (alive and crashed)
            if alive and not crashed:
                left.append(agent)
                if row["acting"][i]:
                    acting.append(agent)
        self._there[slot] = left
        given = {agent: infos.get(agent, {}) for agent in rewards or infos}
        return Outcome(observations, rewards, terminated, truncated, given, tuple(acting))

    def statistics(self, slot: int) -> dict[str, float]:
        if not self._has_statistics:
            return {}
        return {str(name): float(value) for name, value in self._call("statistics", slot).items()}

    def render(self, slot: int) -> Any:
        return self._call("render", slot)

    def _call(self, name: str, slot: int) -> Any:
        """Call what changes no world: it need not be done again when one is restored."""
        return self._engine.ask_all(messages.Call(name, (), {}, frozenset([slot])), f"calling {name!r}")[0]

    def close(self) -> None:
        self.envs.close()


def _describe(env: Any) -> tuple[WorldSpec, bool]:
    """Say what a world is like, and whether it has statistics."""
    return as_agents(env).spec(), callable(getattr(getattr(env, "unwrapped", env), "statistics", None))


def _rows(kinds: Sequence[AgentKind], order: Sequence[AgentId]) -> dict[AgentId, tuple[int, int, int]]:
    """Return where each agent stands: among all, in which block, and in which row of it."""
    places = [(agent, k, j) for k, kind in enumerate(kinds) for j, agent in enumerate(kind.agents)]
    found = {agent: (i, k, j) for i, (agent, k, j) in enumerate(places)}
    return {agent: found[agent] for agent in order}


def _at(path: Sequence[Any], value: Any) -> Any:
    for key in path:
        value = value[key]
    return value
