"""MultiAgentVectorEnv: many parallel environments, observed and acted on by agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from stretto.actions import ActionGate
from stretto.core import AgentKind
from stretto.envs import messages
from stretto.envs.calls import WorldCalls
from stretto.envs.messages import Built
from stretto.envs.slots import Options
from stretto.envs.vector import chosen_slots, slot_seeds
from stretto.errors import InvalidAction
from stretto.spaces import FIXED, Array, SpaceLayout, any_value, map_space, row_of

if TYPE_CHECKING:
    from stretto.envs.engine import Engine


class AgentBatch(dict[str, Any]):
    """Values by agent, each of shape `(num_envs, ...)`.

    `blocks` has the same memory by kind, `(num_envs, agents of the kind, ...)`, for policies that batch over agents.
    """

    blocks: tuple[Any, ...] = ()


class MultiAgentStep(NamedTuple):
    """What a step of all environments gives, by agent."""

    observations: AgentBatch
    rewards: AgentBatch
    terminations: AgentBatch
    truncations: AgentBatch
    infos: dict[str, Any]


class MultiAgentReady(NamedTuple):
    """What `recv` gives, by agent: a row for each of `ids`, the environments that were ready."""

    observations: AgentBatch
    rewards: AgentBatch
    terminations: AgentBatch
    truncations: AgentBatch
    infos: dict[str, Any]
    ids: Array


class MultiAgentVectorEnv(WorldCalls):
    """Parallel environments stepped by workers, one of which is the caller unless they are isolated.

    `observations[agent]` has shape `(num_envs, ...)`. `mask[agent]` says in which environments the agent can act
    next, and `alive[agent]` in which it is left. An agent that died in this step still has its last observation, reward
    and flags, and zeros from the next step on. An environment is reset when nobody in it can act any more; with same-step
    autoreset, its last observations are in `infos["final_obs"]`, by agent. Turns in which nobody can act are skipped (see
    `core.AgentWorld`).

    Attributes:
        choice: what runs the environments, and why, in one sentence.
        mask: who can act next, by agent; `mask.blocks[0]` has all agents, `(num_envs, num_agents)`.
        alive: who is left, in the same shape; in games in turns these are more than can act.
    """

    def __init__(self, engine: Engine, built: Built, mode: AutoresetMode, *, copy: bool, choice: str) -> None:
        super().__init__(engine, built, mode, copy=copy, choice=choice)
        self._mode = mode
        self.closed = False
        self.kinds: list[AgentKind] = built.agents
        self.possible_agents = [agent for kind in self.kinds for agent in kind.agents]
        self._kind_of = {agent: (k, j) for k, kind in enumerate(self.kinds) for j, agent in enumerate(kind.agents)}
        self._row_of = {agent: i for i, agent in enumerate(self.possible_agents)}
        self.mask = self.alive = AgentBatch()

    def single_observation_space(self, agent: str) -> spaces.Space[Any]:
        """The space of one agent's observation in one environment."""
        return self.kinds[self._kind_of[agent][0]].observation_space

    def single_action_space(self, agent: str) -> spaces.Space[Any]:
        """The space of one agent's action in one environment."""
        return self.kinds[self._kind_of[agent][0]].action_space

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The space of one agent's observations in all environments."""
        return batch_space(self.single_observation_space(agent), self.num_envs)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The space of one agent's actions in all environments."""
        return batch_space(self.single_action_space(agent), self.num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Options = None,
        reset_mask: Array | None = None,
    ) -> tuple[AgentBatch, dict[str, Any]]:
        """Reset all environments, or those where `reset_mask` is true; see `VectorEnv.reset`."""
        slots, options = chosen_slots(options, reset_mask, self.num_envs)
        with self._engine.alone:
            infos = self._engine.reset(slot_seeds(seed, self.num_envs), options, slots)
            value = self._engine.state.gather(self._engine.everyone)[0] if self._engine.flying else self._value()
            self._see_who_is_there(value["acting"], value["alive"])
            return self._observations_by_agent(value), infos

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        """Step every environment. `actions[agent]` has a row for each; agents that can act nowhere may be left out."""
        engine = self._engine
        with engine.alone:
            engine.check_steppable()
            infos = engine.step(self._admitted(actions, engine.everyone))
            value = self._value()
            self._keep_what_ended(value, infos)
            self._see_who_is_there(value["acting"], value["alive"])
            return MultiAgentStep(*self._by_name(value), infos)

    def send(self, actions: Mapping[str, Any], ids: Sequence[int] | Array | None = None) -> None:
        """Let some environments (default: all) step, and return at once; `recv` gives the results.

        `actions[agent]` has a row for each of `ids`; agents that can act in none of them may be left out. See
        `VectorEnv.send`.
        """
        with self._engine.alone:
            slots = self._engine.check_ids(ids)
            self._engine.send(self._admitted(actions, slots), slots)

    def recv(self, ready: int | None = None, *, ordered: bool = False) -> MultiAgentReady:
        """Return the steps of the first `ready` environments to finish (default: all that were sent).

        `mask` and `alive` then have the new rows of these environments. See `VectorEnv.recv`.
        """
        with self._engine.alone:
            slots, infos = self._engine.recv(ready, ordered)
            observed, _, _, crashed = self._engine.state.gather(slots)
            value = _ended_where(crashed, observed)
            self._keep_what_ended(value, infos)
            acting, alive = self.mask.blocks[0].copy(), self.alive.blocks[0].copy()
            acting[slots], alive[slots] = value["acting"], value["alive"]
            self._see_who_is_there(acting, alive)
            return MultiAgentReady(*self._by_name(value), infos, np.array(slots, np.int64))

    def _by_name(self, value: dict[str, Any]) -> tuple[AgentBatch, AgentBatch, AgentBatch, AgentBatch]:
        reward, terminated, truncated = (self._by_agent(value[name]) for name in ("reward", "terminated", "truncated"))
        return self._observations_by_agent(value), reward, terminated, truncated

    def _admitted(self, actions: Mapping[str, Any], slots: Sequence[int]) -> list[Any]:
        """Return the actions as arrays, checked block by block: only a refusal has to find out whose fault it is."""
        try:
            return self._gate.admit(self._packed(actions, slots), slots)
        except (InvalidAction, KeyError, IndexError, TypeError, ValueError):
            self._blame_agent(actions, slots)
            raise

    def _blame_agent(self, actions: Mapping[str, Any], slots: Sequence[int]) -> None:
        for agent in self.possible_agents:
            if actions.get(agent) is not None:
                gate = ActionGate(SpaceLayout(self.single_action_space(agent), agent))
                try:
                    gate.admit(actions[agent], slots)
                except InvalidAction as refused:
                    raise refused from None

    def _packed(self, actions: Mapping[str, Any], slots: Sequence[int]) -> tuple[Any, ...]:
        """Lay the actions by agent into one block a kind."""
        unknown = set(actions) - set(self.possible_agents)
        if unknown:
            raise InvalidAction(f"actions must be by agent, one of {self.possible_agents}, got {sorted(unknown)}")
        for agent, column in actions.items():
            rows = isinstance(column, (np.ndarray, list)) and len(column)
            if rows is not False and rows != len(slots):
                raise InvalidAction(
                    f"the actions of {agent!r} must have a row for each of {len(slots)} environments, got {rows}"
                )
        return tuple(
            map_space(
                partial(_side_by_side, len(slots)),
                kind.action_space,
                *(
                    self._absent(agent, slots) if actions.get(agent) is None else actions[agent]
                    for agent in kind.agents
                ),
            )
            for kind in self.kinds
        )

    def _absent(self, agent: str, slots: Sequence[int]) -> Any:
        acting = self.mask[agent][np.asarray(slots)] if self.mask else np.ones(len(slots), bool)
        if acting.any():
            slot = slots[int(np.flatnonzero(acting)[0])]
            raise InvalidAction(f"every agent that can act must act, {agent!r} can in slot {slot} and has no action")
        return None

    def _value(self) -> dict[str, Any]:
        state = self._engine.state
        return _ended_where(state.buffers.truncated[state.buffer], self._observations())

    def _keep_what_ended(self, value: dict[str, Any], infos: dict[str, Any]) -> None:
        """With same-step autoreset rows are of the new episode; rewards and flags belong to the step that ended one."""
        if self._mode is AutoresetMode.SAME_STEP and "final_obs" in infos:
            for name in ("reward", "terminated", "truncated"):
                value[name] = value[name].copy()
                for slot in np.flatnonzero(infos["_final_obs"]):
                    value[name][slot] = infos["final_obs"][slot][name]
            for slot in np.flatnonzero(infos["_final_obs"]):
                blocks = infos["final_obs"][slot]["blocks"]
                infos["final_obs"][slot] = {
                    agent: row_of(self.kinds[k].observation_space, blocks[k], j)
                    for agent, (k, j) in self._kind_of.items()
                }

    def _see_who_is_there(self, acting: Array, alive: Array) -> None:
        self.mask, self.alive = self._by_agent(acting), self._by_agent(alive)

    def _observations_by_agent(self, value: dict[str, Any]) -> AgentBatch:
        batch = AgentBatch()
        for agent, (k, j) in self._kind_of.items():
            batch[agent] = _columns(self.kinds[k].observation_space, value["blocks"][k], j)
        batch.blocks = value["blocks"]
        return batch

    def _by_agent(self, array: Array) -> AgentBatch:
        batch = AgentBatch({agent: array[:, i] for agent, i in self._row_of.items()})
        batch.blocks = (array,)
        return batch

    def state(self) -> Array:
        """Return the global state of every environment, stacked."""
        return np.stack(self._engine.ask_all(messages.Call("state", (), {}), "reading the state"))

    def close(self) -> None:
        """End the workers and give back their memory; may be called twice."""
        if not self.closed:
            self.closed = True
            self._finalizer.detach()
            self._engine.close()


def _ended_where(crashed: Array, value: dict[str, Any]) -> dict[str, Any]:
    """Truncate all agents where the row's own flag says so: the world never sets it, but its worker died."""
    if not crashed.any():
        return value
    truncated = value["truncated"] | (crashed[:, None] & value["alive"])
    left = {name: value[name] & ~crashed[:, None] for name in ("alive", "acting")}
    return {**value, **left, "truncated": truncated}


def _columns(space: spaces.Space[Any], block: Any, j: int) -> Any:
    """Return the values of agent number `j` of a block, for all environments."""
    return map_space(lambda _, part: part[:, j] if isinstance(part, np.ndarray) else part[j], space, block)


def _side_by_side(count: int, space: spaces.Space[Any], *columns: Any) -> Any:
    """Lay the actions of agents for one leaf side by side; an agent without actions gets ones that are ignored."""
    if not isinstance(space, FIXED):
        return tuple([any_value(space)] * count if column is None else column for column in columns)
    filler = np.stack([any_value(space)] * count)
    return np.stack([filler if column is None else np.asarray(column) for column in columns], axis=1)
