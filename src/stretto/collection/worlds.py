"""The worlds of a vector environment by kind of agent, each slot playing the episodes it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from stretto.actions import ActionGate
from stretto.adapters.agents import as_agents
from stretto.adapters.turn_blocks import by_turn, whole_turns
from stretto.core import AgentKind, NextEpisode, WorldSpec, kinds_of
from stretto.envs.messages import Past
from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.envs.restoring.restorer import go_on, last_rows
from stretto.envs.vector import VectorEnv
from stretto.errors import UsageError
from stretto.spaces import FIXED, Array, any_value, map_space


@dataclass(slots=True)
class KindRows:
    """What the agents of one kind were given last: two leading axes, slots and agents.

    `acting` says who can act next. Arrays are views, intact through one more step. In worlds that are `by_turn`, `ahead` says
    who else can be asked now, `acted` who has acted in the turn that is over, and `turned` of every slot whether one is.
    """

    observations: Any
    rewards: Array
    terminated: Array
    truncated: Array
    acting: Array
    ahead: Any = None
    acted: Any = None
    turned: Any = None


class BlockWorlds:
    """Steps a vector environment whose slots reset themselves in the step after an episode's end (`"NextStep"`).

    `rows` has what all slots were given last, kind by kind, and `over` whose episode has ended with that. Between the two
    steps `begin_next` says what the slot plays. Games that are `by_turn` are `TurnBlocks`.
    """

    def __init__(self, envs: VectorEnv | MultiAgentVectorEnv) -> None:
        if envs.metadata["autoreset_mode"] is not AutoresetMode.NEXT_STEP:
            mode = envs.metadata["autoreset_mode"].value
            raise UsageError(
                f"experience is collected from environments that reset in the step after an episode's end, got "
                f"autoreset_mode={mode!r}; leave autoreset_mode out of make_vec, or pass 'NextStep'"
            )
        self.envs, self._engine = envs, envs.engine
        self.count = envs.num_envs
        self.everyone = np.arange(self.count)
        self.spec: WorldSpec = envs.map(_describe)[0]
        self._single = isinstance(envs, VectorEnv)
        if isinstance(envs, MultiAgentVectorEnv):  # what is mapped is the user's own object, without our wrappers
            seen = {agent: kind.observation_space for kind in envs.kinds for agent in kind.agents}
            self.spec = replace(self.spec, observation_spaces=seen)
        self.kinds: list[AgentKind] = kinds_of(self.spec) if isinstance(envs, VectorEnv) else envs.kinds
        self.by_turn = by_turn(self._engine.state.observations.space)
        self._gate = ActionGate(self._engine.state.actions)
        self.started = False
        self.rows: list[KindRows] = []
        self.over: Array = np.zeros(self.count, np.bool_)

    def reset(self, episodes: Mapping[int, NextEpisode]) -> None:
        """Begin episodes in some slots; the first time in all of them."""
        seeds: list[int | None] = [None] * self.count
        options: list[dict[str, Any] | None] = [None] * self.count
        for slot, episode in episodes.items():
            seeds[slot] = episode.seed
            options[slot] = None if episode.options is None else dict(episode.options)
        with self._engine.alone:
            self._engine.reset(seeds, options, list(episodes))
        self.started = True
        self._look()

    def why_not_restorable(self) -> str | None:
        """Say why other worlds could not be brought to where these are; `None` if they can."""
        state = self._engine.state
        if loose := [*state.observations.loose, *state.actions.loose]:
            return f"only worlds with spaces of a fixed size can be saved in the middle of an episode, got {loose[0].space}"
        if self._engine.together:
            return (
                "only worlds that are stepped one by one can be saved in the middle of an episode, got a batch of them; "
                "make them with vectorized=False"
            )
        return None

    def state(self) -> dict[str, Array]:
        """Return what all slots were given last, while none is stepped."""
        return {str(number): array for number, array in enumerate(last_rows(self._engine))}

    def restore(self, pasts: Sequence[Past], state: Mapping[str, Array]) -> None:
        """Bring new worlds to where others were: `state` is what those returned."""
        with self._engine.alone:
            go_on(self._engine, pasts, [state[str(number)] for number in range(len(state))])
        self.started = True
        self._look()

    @property
    def turned(self) -> Array:
        """The slots in which a turn is over, by that with which they were given last."""
        turned: Array = self.rows[0].turned
        return turned

    def actions_by_leaf(self, actions: Sequence[Any], acted: Sequence[Array]) -> list[Array]:
        """Return the actions of all kinds, each with leading axes rows, slots and agents, as a slot's steps have them.

        Who has `acted` has the same axes.
        """
        layout = self._engine.state.actions
        batch = map_space(lambda _, part: part[:, :, 0], self.kinds[0].action_space, actions[0])
        batch = batch if self._single else tuple(actions)
        if self.by_turn:
            batch = (*actions, whole_turns(np.concatenate(acted, axis=2)))
        return [np.asarray(leaf.get(batch), leaf.dtype) for leaf in layout.leaves]

    def begin_next(self, episodes: Mapping[int, NextEpisode]) -> None:
        """Tell slots what to play when they are stepped next after their episode's end."""
        self._engine.next_episodes(episodes)

    def take_over(self, worlds: BlockWorlds) -> None:
        """Go on where others of the same environments are, none of which is being stepped."""
        self.rows, self.over, self.started = worlds.rows, worlds.over, worlds.started

    def choose(self, slots: Array, acting: Array, trials: Array) -> Array:
        """Return which of the slots that could do a step do it now: here all of them.

        `acting` says of each whether a policy is asked for it, and `trials` what it plays.
        """
        return slots

    def exchange(self, slots: Array, acting: Array, actions: Sequence[Any]) -> Array:
        """Step `slots`, in those that are `acting` with a batch of actions for each kind; return which have new rows.

        Batches have two leading axes, slots and agents. Here all slots are stepped together: those that are not among
        `slots` must be idle, unless they are `by_turn`. Then a last batch says what is given for each agent.
        """
        engine = self._engine
        if len(acting) < self.count:
            actions = self._of_all(acting, actions)
        with engine.alone:
            if self.by_turn and len(slots) < self.count:
                going = engine.check_ids(slots)
                engine.send(self._gate.admit(self._batch(self._rows(actions, slots)), going), going, len(going))
                engine.recv(None, ordered=True)
                engine.state.align()
            else:
                engine.check_steppable()
                engine.step(self._gate.admit(self._batch(actions), engine.everyone))
        self._look()
        return slots

    def _of_all(self, slots: Array, actions: Sequence[Any]) -> list[Any]:
        """Return batches for all slots: those that do not act get actions that nobody looks at."""
        everyone = [self._for_all(k, slots, actions[k] if len(slots) else None) for k in range(len(self.kinds))]
        if self.by_turn:
            given = np.zeros((self.count, sum(len(kind.agents) for kind in self.kinds)), np.uint8)
            if len(slots):
                given[slots] = actions[-1]
            everyone.append(given)
        return everyone

    def _rows(self, everyone: Sequence[Any], slots: Array) -> list[Any]:
        """Return the rows of some slots of batches for all."""
        chosen = [
            map_space(lambda _, part: _rows(part, slots), kind.action_space, batch)
            for kind, batch in zip(self.kinds, everyone, strict=False)
        ]
        return [*chosen, *(batch[slots] for batch in everyone[len(self.kinds) :])]

    def _for_all(self, k: int, slots: Array, batch: Any) -> Any:
        """Return a batch for all slots: those that do not act get actions that nobody looks at."""

        def placed(leaf: Any, part: Any) -> Any:
            nothing, agents = any_value(leaf), len(self.kinds[k].agents)
            if not isinstance(leaf, FIXED):
                rows = {} if part is None else dict(zip(slots.tolist(), part, strict=True))
                return [rows.get(slot, [nothing] * agents) for slot in range(self.count)]
            array = np.empty((self.count, agents, *np.shape(nothing)), leaf.dtype)
            array[:] = nothing
            if part is not None:
                array[slots] = part
            return array

        return map_space(placed, self.kinds[k].action_space, batch)

    def _batch(self, actions: Sequence[Any]) -> Any:
        if not self._single:
            return tuple(actions)
        return map_space(_without_agents, self.kinds[0].action_space, actions[0])

    def _look(self) -> None:
        """Take in the rows that the last call has given, as views."""
        state = self._engine.state
        b, k = state.buffers, state.buffer
        observations = state.observations.batch(b.observations[k], state.objects)
        self.rows, self.over = self._kind_rows(observations, b.rewards[k], b.terminated[k], b.truncated[k])

    def _kind_rows(
        self, observations: Any, rewards: Array, terminated: Array, truncated: Array
    ) -> tuple[list[KindRows], Array]:
        over = terminated | truncated
        if self._single:
            seen = map_space(_with_agents, self.kinds[0].observation_space, observations)
            flags = terminated[:, None], truncated[:, None], ~over[:, None]
            return [KindRows(seen, rewards[:, None], *flags)], over
        rows, first = [], 0
        names = [*_FLAGS, *(("ahead", "acted") if self.by_turn else ())]
        turned = observations["turned"][:, 0] if self.by_turn else None
        for kind, seen in zip(self.kinds, observations["blocks"], strict=True):
            span = slice(first, first := first + len(kind.agents))
            rows.append(KindRows(seen, *(observations[name][:, span] for name in names)))
            rows[-1].turned = turned
        # The world never sets the flag of the whole slot, but its worker died, and the episode was lost.
        return [_lost(one, truncated[:, None]) for one in rows] if truncated.any() else rows, over

    def close(self) -> None:
        """Close the environments; may be called twice."""
        self.envs.close()


_FLAGS = ("reward", "terminated", "truncated", "acting")


def _lost(rows: KindRows, lost: Array) -> KindRows:
    return replace(rows, truncated=rows.truncated | (lost & ~rows.terminated), acting=rows.acting & ~lost)


def _rows(part: Any, slots: Array) -> Any:
    return part[slots] if isinstance(part, np.ndarray) else [part[slot] for slot in slots]


def _describe(env: Any) -> WorldSpec:
    return as_agents(env).spec()


def _with_agents(_: Any, part: Any) -> Any:
    """Give a leaf's batch an axis of one agent."""
    return part[:, None] if isinstance(part, np.ndarray) else [[value] for value in part]


def _without_agents(_: Any, part: Any) -> Any:
    return part[:, 0] if isinstance(part, np.ndarray) else [row[0] for row in part]
