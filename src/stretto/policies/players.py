"""Players: agents in an episode. How an agent's action is computed, alone or together with others, exists here alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.actions import WHOLE
from stretto.core import Action, AgentId, Observation, PolicyStep, own_copy
from stretto.errors import PolicyFailed
from stretto.ownership import taken_over
from stretto.policies.batches import Batches, Call
from stretto.policies.block_actors import BlockActors
from stretto.policies.questions import AgentEpisode, Chooser, Decision
from stretto.policies.undo import Undo
from stretto.seeding.generators import PrivateGenerators

__calls_user_code__ = True


@dataclass(slots=True)
class Player:
    """An agent in an episode; `step` is its policy's."""

    who: AgentEpisode
    agent: AgentId
    row: int
    policy: Any
    step: Callable[[Observation], Action]
    guard: PrivateGenerators | None
    rng: np.random.Generator | None = None
    space: spaces.Space[Any] | None = None  # of its actions, if it may draw from it
    undo: Undo | None = None

    def keep(self) -> None:
        """Keep what the agent is, before it is asked ahead."""
        if self.undo is None:
            self.undo = Undo(self.policy, self.rng, self.space)
        self.undo.keep()

    def take_back(self) -> None:
        """Let the agent be what it was before it was asked ahead."""
        assert self.undo is not None, "it was not asked ahead"
        self.undo.take_back()


def act_in_turn(
    choosers: Mapping[AgentId, Chooser], agents: Iterable[AgentId], observations: Mapping[AgentId, Observation]
) -> tuple[dict[AgentId, Action], bool]:
    """Let agents choose one after the other, with nothing measured; say also whether all of it are whole numbers.

    Each gets an observation of its own: a world may write into its own again, or hand it to several agents, and a policy
    may keep or change what it is given.
    """
    actions, whole = {}, True
    for agent in agents:
        step, failed = choosers[agent]
        try:
            action = step(taken_over(observations, agent))
        except (Exception, SystemExit) as error:
            raise failed(error) from error
        if type(action) in WHOLE:
            actions[agent] = action
        else:  # its next may be the same array
            actions[agent] = action = own_copy(action.action if type(action) is PolicyStep else action)
            whole = whole and type(action) in WHOLE
    return actions, whole


def act_alone(player: Player, observation: Observation) -> Decision:
    """Let one agent choose."""
    try:
        # The time is measured within: waiting for one's turn with the global generators is no computing.
        guard = player.guard
        action, seconds = _timed(player, observation) if guard is None else guard.run(_timed, player, observation)
        if type(action) is PolicyStep:
            return Decision(own_copy(action.action), seconds, own_copy(dict(action.says)))
        return Decision(own_copy(action), seconds)  # its next may be the same array
    except (Exception, SystemExit) as error:
        raise policy_failed(player.who, error) from error


def _timed(player: Player, observation: Observation) -> tuple[Any, float]:
    """Return what an agent chooses, and how long that took."""
    began = time.perf_counter()
    action = player.step(observation)
    return action, time.perf_counter() - began


def act_together(
    policy: Any, batches: Batches, call: Call, players: Sequence[Player], observations: Sequence[Observation]
) -> tuple[list[Action], float]:
    """Ask a policy for a whole batch; return what those do who have a place in the call, and how long it took for each."""
    first = players[next(iter(call.places.values()))]

    def step() -> tuple[list[Action], float]:
        policies, seen = batches.fill(call, players, observations)
        began = time.perf_counter()
        batches.spaces.on = True
        try:
            actions = list(policy.step_batch(policies, seen))
        finally:
            batches.spaces.on = False
        if len(actions) != len(policies):
            raise ValueError(f"step_batch must return an action for each of {len(policies)} agents, got {len(actions)}")
        seconds = (time.perf_counter() - began) / len(call.places)
        return [own_copy(actions[place]) for place in call.places], seconds

    try:
        return step() if first.guard is None else first.guard.run(step)
    except (Exception, SystemExit) as error:
        raise policy_failed(first.who, error, together=len(call.places) > 1) from error


def act_by_block(
    block: BlockActors, players: Sequence[Player], observations: Sequence[Observation]
) -> tuple[list[Action], float]:
    """Ask a policy that takes blocks for agents who are asked one by one; say also how long it took for each."""
    began = time.perf_counter()
    try:
        asked = [(one.who.episode, one.agent, seen) for one, seen in zip(players, observations, strict=True)]
        actions = block.answer(asked)
    except (Exception, SystemExit) as error:
        raise policy_failed(players[0].who, error, together=len(players) > 1) from error
    return [own_copy(action) for action in actions], (time.perf_counter() - began) / len(players)


def asked_by_block(_: Observation) -> Action:
    """Stand in for the step of an agent whose policy takes blocks: nobody may ask it alone."""
    raise AssertionError("agents of a policy that takes blocks are asked together")


def policy_failed(who: AgentEpisode, error: BaseException, *, together: bool = False) -> PolicyFailed:
    """Say whose policy raised. One that calls sys.exit() has failed, too, and must not end the program."""
    error.add_note(f"in the policy of agent {who.agent}")
    failed = PolicyFailed(f"the policy of agent {who.agent} raised {error!r}", who.policy, who.agent)
    failed.episode, failed.together = who.episode, together
    return failed
