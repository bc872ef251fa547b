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
from stretto.policies.players import policy_failed
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
        self._watched = position
        at = memoryview(array("q", [0, 0])) if position is None else position
        self._group = EnvGroup([make], 0, settings, 0, at)
        self._group.build()
        self._runner, self.steps = runner, 0
        self._layout, self._actions = self._group.layout, self._group.action_layout
        self.kind = AgentKind((ONLY_AGENT,), self._layout.space, self._actions.space)
        self._columns = Columns(self._layout, self._actions, self._group.check_shape)
        self._known = known_choices(self._actions.space)
        self._function = runner.function(0)

    def advance(self, begun: Mapping[int, Trial], ready: Slots) -> Advance[list[Rollout]]:
        """Play the trial that begins."""
        return Advance([self.play(trial) for trial in begun.values()], (), list(begun))

    def play(self, trial: Trial) -> Rollout:
        """Play a trial; return its rollout."""
        columns = self._columns
        columns.clear()
        choose, failed = self._begin(trial)
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
                    place = replace(place, doing="choosing")
                error.add_note(str(place))
                with suppress(AttributeError):
                    error.place = place  # type: ignore[attr-defined]
                raise
        if self._function is None:
            self._runner.end(trial.index)
        self.steps += row - trial.episodes
        experience, seed = columns.experience(self.kind), episodes[0].seed
        assert seed is not None
        return Rollout(trial.index, seed, trial.task, tuple(columns.ends), (experience,))

    def _begin(self, trial: Trial) -> tuple[Callable[[Any], Any], Callable[[BaseException], PolicyFailed]]:
        """Return what chooses in a trial, and what says who failed if that raises."""
        if self._function is not None:
            return self._function, lambda error: policy_failed(_agent_of(trial), error)
        self._runner.begin([_agent_of(trial)])
        choosers = self._runner.choosers(trial.index)
        assert choosers is not None, "its policy chooses for one agent at a time"
        return choosers[ONLY_AGENT]

    def _play_episode(
        self, how: ResetSlot, row: int, choose: Callable[[Any], Any], failed: Callable[[BaseException], PolicyFailed]
    ) -> int:
        """Play an episode from this row on; return the next one."""
        seen = self._columns.put(row, traced_call(self._group.begin_alone, "world reset")(how))
        terminated = truncated = False
        while (terminated is False and truncated is False) or self._goes_on(terminated, truncated):
            row, seen, terminated, truncated = self._play_on(row, seen, choose, failed)
        self._columns.end(row, terminated, truncated)
        return row + 1

    def _play_on(
        self, row: int, seen: Any, choose: Callable[[Any], Any], failed: Callable[[BaseException], PolicyFailed]
    ) -> tuple[int, Any, Any, Any]:
        """Play to the end of the episode, or as long as the world is stepped in the same way; return where that led.

        The hot loop: beyond the world, the policy and what a plain loop keeps, a step costs 0.2 µs, half of it because worlds
        get numbers of numpy's. A policy may change what it sees, and a world may write into its observation again: a policy
        sees a copy, unless the world has let go of what it gave.
        """
        columns, known, group, watched = self._columns, self._known, self._group, self._watched
        actions, rewards, exact = columns.actions, columns.rewards, columns.exact
        clock, plain, references, whole, room = group.clock, np.ndarray, sys.getrefcount, WHOLE, len(exact)
        ahead, terminated, truncated = clock.now - row, False, False
        step, most = group.go_on_alone()
        step = traced_call(step, "world step")
        try:
            for row in range(row + 1, row + 1 + most):  # noqa: B020, PLR1704  where the next observation belongs
                try:
                    chosen = choose(seen)
                except (Exception, SystemExit) as error:
                    raise failed(error) from error
                if type(chosen) in whole and chosen in known:
                    action, given = chosen, known[chosen]
                else:
                    action, given = self._admit(chosen)
                if watched is not None:
                    watched[1] = row  # whoever watches sees that it moves
                observation, reward, terminated, truncated, _ = step(given)
                actions.append(action)
                rewards.append(reward if isinstance(reward, float) else group.number(reward, row + ahead))
                if type(observation) is plain and row < room:
                    try:
                        exact[row][_WHOLE] = observation
                        alone = references(observation) == ONE_NAME and observation.base is None
                        seen = observation if alone else observation.copy()
                    except (TypeError, ValueError):
                        clock.now = row + ahead
                        seen, room = columns.put(row, observation), 0
                else:
                    clock.now = row + ahead
                    seen = columns.put(row, observation)
                    exact, room = columns.exact, len(columns.exact)
                if terminated is not False or truncated is not False:
                    clock.now = row + ahead
                    if not self._goes_on(terminated, truncated):
                        break
        finally:
            clock.now = row + ahead  # not in every step: nobody looks at it before
        return row, seen, terminated, truncated

    def _goes_on(self, terminated: Any, truncated: Any) -> bool:
        """Whether the episode goes on; raise if these flags of the world are neither true nor false."""
        try:
            return not (terminated or truncated)
        except ValueError:  # an array
            check_scalars(0.0, terminated, truncated, self._group.place())
            raise

    def _admit(self, chosen: Any) -> tuple[Any, Any]:
        """Return a choice as worlds get it from us anywhere, and a copy for the world, which may change it; or refuse it."""
        if type(chosen) is PolicyStep:
            chosen, said = chosen
            self._columns.says.append(dict(said))
        if type(chosen) in WHOLE and chosen in self._known:
            return chosen, self._known[chosen]
        wrong = complaint(self._actions.space, chosen)
        if wrong is not None:
            raise InvalidAction(f"the action of agent {ONLY_AGENT} {wrong}")
        only = self._actions.only
        if only is None:
            action = own_copy(chosen)
        else:
            action = only.dtype.type(np.asarray(chosen).item()) if self._known else np.array(chosen, only.dtype)
        return action, own_copy(action)

    def close(self) -> None:
        """Close the world."""
        self._group.close(range(1))


def _agent_of(trial: Trial) -> AgentEpisode:
    return AgentEpisode(trial.index, ONLY_AGENT, 0, trial.tree.child("policy", ONLY_AGENT), trial.index)
