"""PlainStage: whole trials of one world with one agent, with nothing between the world and its policy."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from stretto import trace
from stretto.actions import WHOLE, complaint, known_choices
from stretto.adapters.gymnasium import ONLY_AGENT
from stretto.collection.columns import Columns
from stretto.collection.experience import Rollout
from stretto.collection.tasks import Trial
from stretto.core import AgentKind, PolicyStep, own_copy
from stretto.envs.messages import ResetSlot
from stretto.envs.single_group import EnvGroup
from stretto.envs.slot import GroupSettings
from stretto.errors import InvalidAction, PolicyFailed
from stretto.outputs import check_scalars
from stretto.ownership import ONE_NAME
from stretto.policies.questions import AgentEpisode
from stretto.policies.runners import InPlace
from stretto.rollout import Advance, Slots
from stretto.run_trace import traced_call

__calls_user_code__ = True


_WHOLE = slice(None)


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
        self._columns = Columns(self._layout, self._actions, self._group.check_shape)
        self._known = known_choices(self._actions.space)

    def advance(self, begun: Mapping[int, Trial], ready: Slots) -> Advance[list[Rollout]]:
        """Play the trial that begins."""
        return Advance([self.play(trial) for trial in begun.values()], (), list(begun))

    def play(self, trial: Trial) -> Rollout:
        """Play a trial; return its rollout."""
        tree = trial.tree.child("policy", ONLY_AGENT)
        self._runner.begin([AgentEpisode(trial.index, ONLY_AGENT, 0, tree, trial.index)])
        columns = self._columns
        columns.clear()
        choosers = self._runner.choosers(trial.index)
        assert choosers is not None, "its policy chooses for one agent at a time"
        choose, failed = choosers[ONLY_AGENT]
        choose = traced_call(choose, "policy step")
        row, episodes = 0, [trial.episode(number) for number in range(trial.episodes)]
        for number, begin in enumerate(episodes):
            options = None if begin.options is None else dict(begin.options)
            how = ResetSlot(0, begin.seed, options, episode=number, slot_seed=begin.seed)
            try:
                row = self._play_episode(how, row, choose, failed)
            except Exception as error:
                place = replace(self._group.place(), slot=None, worker=None)
                if isinstance(error, (PolicyFailed, InvalidAction)):  # the world has not begun that step
                    place = replace(place, doing="choosing", step=1 + (place.step or 0))
                error.add_note(str(place))
                with suppress(AttributeError):
                    error.place = place  # type: ignore[attr-defined]
                raise
        self._runner.end(trial.index)
        self.steps += row - trial.episodes
        experience, seed = columns.experience(self.kind), episodes[0].seed
        assert seed is not None
        return Rollout(trial.index, seed, trial.task, tuple(columns.ends), (experience,))

    def _play_episode(
        self, how: ResetSlot, row: int, choose: Callable[[Any], Any], failed: Callable[[BaseException], PolicyFailed]
    ) -> int:
        """Play an episode from this row on; return the next one.

        The hot loop: beyond the world, the policy and what a plain loop keeps, a step costs 0.3 µs. A policy may change
        what it sees, and a world may write into its observation again: a policy sees a copy, unless the world has let go
        of what it gave.
        """
        columns, admit, known, group = self._columns, self._admit, self._known, self._group
        clock, steps, plain, references = group.clock, group.steps, np.ndarray, sys.getrefcount
        if trace.active is not None:
            # Looked up each time: a group replaces it once it has seen what its world returns.
            steps = [traced_call(lambda action: group.steps[0](action), "world step")]  # noqa: PLW0108
        add_action, add_reward, position = columns.actions.append, columns.rewards.append, self._position
        observation = traced_call(group.begin_alone, "world reset")(how)
        exact, room = columns.exact, len(columns.exact)
        terminated = truncated = False
        while (terminated is False and truncated is False) or self._goes_on(terminated, truncated):
            if type(observation) is plain and row < room:
                try:
                    exact[row][_WHOLE] = observation
                    alone = references(observation) == ONE_NAME and observation.base is None
                    seen = observation if alone else observation.copy()
                except (TypeError, ValueError):
                    seen, columns.exact, room = columns.put(row, observation), (), 0
            else:
                seen, exact, room = columns.put(row, observation), columns.exact, len(columns.exact)
            try:
                chosen = choose(seen)
            except (Exception, SystemExit) as error:
                raise failed(error) from error
            if type(chosen) is PolicyStep:
                chosen, said = chosen
                columns.says.append(dict(said))
            if type(chosen) in WHOLE and chosen in known:
                action, given = chosen, known[chosen]
            else:
                action = admit(chosen)
                given = own_copy(action)  # a world may change what it is given
            clock.now = now = clock.now + 1
            position[1] = row  # whoever watches sees that it moves
            if now >= clock.alarm:
                group.cut_episodes()
            observation, reward, terminated, truncated, _ = steps[0](given)
            row += 1
            add_action(action)
            add_reward(reward if type(reward) is float or isinstance(reward, float) else group.number(reward))
        columns.end(row, observation, terminated, truncated)
        return row + 1

    def _goes_on(self, terminated: Any, truncated: Any) -> bool:
        """Whether the episode goes on; raise if these flags of the world are neither true nor false."""
        try:
            return not (terminated or truncated)
        except ValueError:  # an array
            check_scalars(0.0, terminated, truncated, self._group.place())
            raise

    def _admit(self, choice: Any) -> Any:
        """Return a choice as a world gets it from us anywhere, or refuse it."""
        wrong = complaint(self._actions.space, choice)
        if wrong is not None:
            raise InvalidAction(f"the action of agent {ONLY_AGENT} {wrong}")
        only = self._actions.only
        if only is None:
            return own_copy(choice)
        return only.dtype.type(np.asarray(choice).item()) if self._known else np.array(choice, only.dtype)

    def close(self) -> None:
        """Close the world."""
        self._group.close(range(1))
