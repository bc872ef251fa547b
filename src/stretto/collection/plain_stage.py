"""PlainStage: whole trials of one world with one agent, with nothing between the world and its policy."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from stretto import trace
from stretto.actions import complaint
from stretto.adapters.gymnasium import ONLY_AGENT
from stretto.collection.experience import Experience, Rollout
from stretto.collection.tasks import Trial
from stretto.core import AgentKind, PolicyStep
from stretto.envs.group import EnvGroup
from stretto.envs.messages import ResetSlot
from stretto.envs.slot import GroupSettings
from stretto.errors import InvalidAction
from stretto.policies.actors import AgentEpisode
from stretto.policies.runners import InPlace
from stretto.policies.states import map_state
from stretto.rollout import Advance, Slots
from stretto.run_trace import traced_call
from stretto.spaces import Array, SpaceLayout

__calls_user_code__ = True

_FIRST_ROWS, _FEW = 256, 1024


class PlainStage:
    """Plays a trial from its beginning to its end in one advance; a lock step would only cost time where nobody batches.

    It is for policies that choose for one agent at a time.
    """

    count = 1

    def __init__(
        self,
        make: Callable[[], Any],
        runner: InPlace,
        global_rng: str = "auto",
        checks: str = "first",
        position: memoryview[int] | None = None,
    ) -> None:
        settings = GroupSettings(AutoresetMode.DISABLED, episode_seeds=False, global_rng=global_rng, checks=checks)
        self._position = memoryview(array("q", [0, 0])) if position is None else position
        self._group = EnvGroup([make], 0, settings, 0, self._position)
        self._group.build()
        self._runner, self.steps = runner, 0
        self._layout, self._actions = self._group.layout, self._group.action_layout
        self.kind = AgentKind((ONLY_AGENT,), self._layout.space, self._actions.space)
        self._columns = _Columns(self._layout)
        space = self._actions.space
        self._known: dict[int, Any] = {}  # of a space of few numbers, each as the world gets it
        if isinstance(space, spaces.Discrete):
            numbers = range(int(space.start), int(space.start) + min(int(space.n), _FEW))
            self._known = {number: space.dtype.type(number) for number in numbers}

    def advance(self, begun: Mapping[int, Trial], ready: Slots) -> Advance[list[Rollout]]:
        """Play the trial that begins."""
        return Advance([self.play(trial) for trial in begun.values()], (), list(begun))

    def play(self, trial: Trial) -> Rollout:
        """Play a trial; return its rollout."""
        tree = trial.tree.child("policy", ONLY_AGENT)
        self._runner.begin([AgentEpisode(trial.index, ONLY_AGENT, 0, tree, trial.index)])
        columns, ends = self._columns, []
        columns.clear()
        choose = traced_call(self._runner.chooser(trial.index, ONLY_AGENT), "policy step")
        for number in range(trial.episodes):
            begin = trial.episode(number)
            options = None if begin.options is None else dict(begin.options)
            how = ResetSlot(0, begin.seed, options, episode=number, slot_seed=begin.seed)
            self._play_episode(how, choose)
            ends.append(len(columns.rewards) - 1)
        self._runner.end(trial.index)
        self.steps += len(columns.rewards) - len(ends)
        experience = columns.experience(self.kind)
        return Rollout(trial.index, trial.seed, trial.task, tuple(ends), (experience,))

    def _play_episode(self, how: ResetSlot, choose: Callable[[Any], Any]) -> None:
        """The hot loop: beyond the world, the policy and what a plain loop keeps, a step costs 0.3 µs."""
        columns, admit, known = self._columns, self._admit, self._known
        group, clock, steps = self._group, self._group.clock, self._group.steps
        if trace.active is not None:
            # Looked up each time: a group replaces it once it has seen what its world returns.
            steps = [traced_call(lambda action: group.steps[0](action), "world step")]  # noqa: PLW0108
        add_action, add_reward = columns.actions.append, columns.rewards.append
        add_terminated, add_truncated = columns.terminated.append, columns.truncated.append
        observation = traced_call(group.begin_alone, "world reset")(how)
        row, only, position = columns.count, self._layout.only is not None, self._position
        over = False
        while not over:
            if row == columns.room:
                columns.grow()
            columns.target[row] = observation
            seen = columns.arrays[0][row].copy() if only else columns.row(row)
            chosen = choose(seen)
            if type(chosen) is PolicyStep:
                chosen, said = chosen
                columns.says.append(dict(said))
            action = known[chosen] if type(chosen) is int and chosen in known else admit(chosen)
            clock.now += 1
            position[1] = row  # whoever watches sees that it moves
            if clock.now >= clock.alarm:
                group.cut_episodes()
            observation, reward, terminated, truncated, _ = steps[0](action)
            over = terminated or truncated
            row += 1
            add_action(action)
            add_reward(reward)
            add_terminated(terminated)
            add_truncated(truncated)
        columns.count = row
        columns.end(observation)

    def _admit(self, choice: Any) -> Any:
        """Return a choice as a world gets it from us anywhere, or refuse it."""
        only = self._actions.only
        checked = self._checked(choice)
        if only is None:
            return checked
        return only.dtype.type(np.asarray(checked).item()) if self._known else np.array(checked, only.dtype)

    def _checked(self, action: Any) -> Any:
        wrong = complaint(self._actions.space, action)
        if wrong is not None:
            raise InvalidAction(f"the action of agent {ONLY_AGENT} {wrong}")
        return action

    def close(self) -> None:
        """Close the world."""
        self._group.close(range(1))


class _Columns:
    """The rows of a trial: observations in arrays, all else in lists until it is over."""

    def __init__(self, layout: SpaceLayout) -> None:
        self._layout = layout
        self.room = _FIRST_ROWS
        self.arrays: list[Array] = [np.zeros(shape, dtype) for shape, dtype in layout.shapes(self.room)]
        self.clear()

    def clear(self) -> None:
        self._objects: list[list[Any]] = [[] for _ in self._layout.loose]
        self.count = 0
        self.actions: list[Any] = []
        self.rewards: list[Any] = []
        self.terminated: list[Any] = []
        self.truncated: list[Any] = []
        self.says: list[Any] = []
        self._ends: list[int] = []
        self._aim()

    def _aim(self) -> None:
        self.target = self._layout.target(self.arrays, lambda leaf, i, value: self._objects[leaf].append(value))

    def grow(self) -> None:
        """Make room for twice as many rows."""
        self.room *= 2
        self.arrays = [np.concatenate([part, np.zeros_like(part)]) for part in self.arrays]
        self._aim()

    def row(self, row: int) -> Any:
        """Return a copy of an observation that was written down."""
        return self._layout.row(self.arrays, self._objects, row)

    def end(self, observation: Any) -> None:
        """Write down the last observation of an episode, in a row in which nobody acts."""
        if self.count == self.room:
            self.grow()
        self.target[self.count] = observation
        self._ends.append(self.count)
        self.count += 1
        self.actions.append(None)
        self.rewards.append(0.0)
        self.terminated.append(False)
        self.truncated.append(False)

    def experience(self, kind: AgentKind) -> Experience:
        """Return the rows as arrays, with an axis of one agent."""
        count = self.count
        acted = np.ones((count, 1), np.bool_)
        acted[self._ends] = False
        places = np.flatnonzero(acted[:, 0])
        actions = SpaceLayout(kind.action_space)
        taken = [self.actions[i] for i in places.tolist()]

        def column(values: Any, dtype: Any, shape: tuple[int, ...] = ()) -> Array:
            found = np.zeros((count, 1, *shape), dtype)
            found[places, 0] = values
            return found

        done = [column([leaf.get(one) for one in taken], leaf.dtype, leaf.shape) for leaf in actions.fixed]
        loose = [_objects([leaf.get(one) for one in taken], places, count) for leaf in actions.loose]
        says = {}
        if self.says:
            says = map_state(lambda *parts: column(parts, np.asarray(parts[0]).dtype, np.shape(parts[0])), *self.says)
        seen = [part[:count, None].copy() for part in self.arrays]
        objects = [_objects(values, np.arange(count), count) for values in self._objects]
        return Experience(
            kind.agents,
            _batch(self._layout, seen, objects),
            _batch(actions, done, loose),
            acted,
            np.array(self.rewards, np.float64)[:, None],
            np.array(self.terminated, np.bool_)[:, None],
            np.array(self.truncated, np.bool_)[:, None],
            says,
        )


def _objects(values: list[Any], places: Array, count: int) -> Array:
    found = np.empty((count, 1), object)
    for place, value in zip(places.tolist(), values, strict=True):
        found[place, 0] = value
    return found


def _batch(layout: SpaceLayout, arrays: list[Array], objects: list[Array]) -> Any:
    if layout.only is not None:
        return arrays[0]
    return layout.assembled(arrays, objects)
