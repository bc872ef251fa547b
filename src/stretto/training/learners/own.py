"""Learners that users write for one agent: each agent of a block has one of its own, and they learn one after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces

from stretto.core import BlockAnswer, BlockPolicy, ChoiceStreams, WorldSpec
from stretto.errors import UsageError
from stretto.policies.states import map_state
from stretto.spaces import Array, map_space
from stretto.storage import SegmentLayout
from stretto.storage.segments import SegmentSnapshot
from stretto.training.learners.base import LearnerBlock, Metrics
from stretto.training.learners.failures import NOT_FINITE, LearnerFailure, arrays_of
from stretto.training.learners.own_settings import OwnSettings


@dataclass(frozen=True)
class AgentExperience:
    """What an agent saw and did in a segment: arrays (rows, environments, ...).

    The last observation of an episode has a row of its own, in which the agent did not act (`acted` is false). So what
    follows a row is always the next one; `following` (environments, ...) is what follows the last.
    """

    observations: Any
    actions: Any
    acted: Array
    rewards: Array
    terminated: Array
    truncated: Array
    following: Any
    progress: float


class AgentLearner(Protocol):
    """What a user writes. It is made as `Class(observation_space, action_space, seed=..., **arguments)`.

    `numbers` are random, at least 0 and less than 1, for each row: a learner that draws from nothing else is the same
    wherever it is computed. State is what `torch.nn.Module` and optimizers have.
    """

    def act(self, observations: Any, numbers: Array) -> Any:
        """Return an action for each row of a batch; `numbers` has as many for each as `draws` says, or one."""

    def learn(self, seen: AgentExperience) -> Mapping[str, float]:
        """Learn from a segment; return figures. One called `loss` that is not finite stops this agent."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> object: ...


class OwnLearners:
    """A learner of the user's for each agent of a block."""

    def __init__(self, make: Callable[..., AgentLearner], block: LearnerBlock, settings: OwnSettings) -> None:
        self._agents = block.agents
        self.failures: list[LearnerFailure] = []
        spaces_of_agent = block.observation_space, block.action_space
        seeds = [int(tree.child("own").generator().integers(1 << 31)) for tree in block.trees]
        self._learners = [make(*spaces_of_agent, seed=seed, **settings.arguments) for seed in seeds]
        self.policy = OwnPolicy(block.world, self._learners)
        self.layout = SegmentLayout(block.storage(), settings.rows)
        self.updates = np.zeros(len(block.agents), np.int64)

    def learn(self, seen: SegmentSnapshot, progress: float, learning: Array | None = None) -> list[Metrics]:
        """Let each agent learn from its own rows."""
        found: list[Metrics] = []
        self.failures = []
        names = "observations", "actions", "acted", "rewards", "terminated", "truncated"
        segment = {name: getattr(seen, name) for name in names}
        for number in range(len(self._learners)):
            mine = map_state(lambda array, at=number: array[:, :, at], segment)
            following = map_state(lambda array, at=number: array[:, at], seen.next_observations)
            experience = AgentExperience(**mine, following=following, progress=progress)
            figures: Mapping[str, float] = {}
            if learning is None or learning[number]:
                figures = self._learned(number, experience)
            found.append({"updates": float(self.updates[number]), **figures})
        return found

    def _learned(self, number: int, experience: AgentExperience) -> Mapping[str, float]:
        """Let an agent learn; one whose loss is not finite becomes again what it was."""
        learner = self._learners[number]
        before = _with_arrays(learner.state_dict())
        figures = learner.learn(experience)
        if math.isfinite(figures.get("loss", 0.0)):
            self.updates[number] += 1
            return figures
        learner.load_state_dict(_with_tensors(before))
        tried = {name: np.array(array) for name, array in arrays_of(experience)}
        failure = LearnerFailure(self._agents[number], int(self.updates[number]) + 1, NOT_FINITE, tried)
        self.failures.append(failure)
        return {}

    def acting(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what of a `state` agents act by: nobody but they know, so it is all of theirs."""
        found: Mapping[str, Any] = state["agents"]
        return found

    def weights(self) -> list[list[Array]]:
        """Return all arrays in the state of each learner."""
        return [list(_arrays(_with_arrays(learner.state_dict()))) for learner in self._learners]

    def load_policy(self, state: Mapping[str, Array]) -> None:
        """Refuse: only its own code knows what its weights are."""
        raise UsageError("a learner of one's own cannot begin with the weights of another run; let it load them itself")

    def state(self) -> dict[str, Any]:
        """Return all that the learners need to go on as if nothing had happened."""
        states = [_with_arrays(learner.state_dict()) for learner in self._learners]
        return {"agents": {str(number): state for number, state in enumerate(states)}, "updates": self.updates}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned."""
        self.policy.load_state(state["agents"])
        self.updates[...] = state["updates"]


class OwnPolicy(BlockPolicy):
    """Lets each agent of a block act by its own learner."""

    def __init__(self, world: WorldSpec, learners: Sequence[AgentLearner]) -> None:
        super().__init__(world)
        self._learners = learners
        self._space: spaces.Space[Any] = world.observation_spaces[world.agents[0]]
        self._draws = [int(getattr(learner, "draws", 1)) for learner in learners]

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Become what agents were, each by its number."""
        for number, learner in enumerate(self._learners):
            learner.load_state_dict(_with_tensors(states[str(number)]))

    def step_block(self, observations: Any, states: Any, choices: ChoiceStreams) -> BlockAnswer:
        numbers = choices.uniform(max(self._draws))
        actions = []
        for number, learner in enumerate(self._learners):
            seen = map_space(lambda _, part, at=number: part[at], self._space, observations)
            actions.append(learner.act(seen, numbers[number, :, : self._draws[number]]))
        return BlockAnswer(map_state(lambda *parts: np.stack([np.asarray(one) for one in parts]), *actions), states, {})


def _arrays(value: Any) -> Iterator[Array]:
    """Yield the arrays of a state, in its order."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _arrays(part)


def _with_arrays(value: Any) -> Any:
    """Return a state with arrays in place of tensors, and texts as keys."""
    if isinstance(value, torch.Tensor):
        return value.detach().numpy().copy()
    if isinstance(value, Mapping):
        return {str(key): _with_arrays(part) for key, part in value.items()}
    return [_with_arrays(part) for part in value] if isinstance(value, (list, tuple)) else value


def _with_tensors(value: Any) -> Any:
    """Return a state as `state_dict` gave it: tensors, and numbers as keys where there were some."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))
    if isinstance(value, Mapping):
        return {int(key) if str(key).isdecimal() else key: _with_tensors(part) for key, part in value.items()}
    return [_with_tensors(part) for part in value] if isinstance(value, list) else value
