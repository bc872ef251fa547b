"""Worlds in which trials are played: made anew where a trial or its task needs that, and with more to see of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import gymnasium

from stretto.adapters.trial_views import ObservationView, TrialView
from stretto.adapters.wrapped import WrappedAgents
from stretto.core import Action, AgentId, AgentWorld, Outcome, WorldSpec
from stretto.errors import InvalidOutput, Place, UsageError

__calls_user_code__ = True

EPISODE = "stretto.episode"
"""The option of a reset that says which episode of its trial begins. Worlds themselves never see it."""

TOLD_BY = ("get_current_task", "get_task", "task")
"""The methods, or the attribute, by which worlds tell what their task is, in the order in which they are looked for."""


class Renewal:
    """Says when a world is made anew: for every trial (`fresh`), or for every task (`by_task`), which `make` is given."""

    def __init__(self, make: Callable[[Any], Any], task: Any, *, fresh: bool, by_task: bool) -> None:
        self._make, self._fresh, self._by_task = make, fresh, by_task
        self.task, self._used = task, False
        self.later = False
        """Whether the episode that began last is not the first of its trial."""

    def begin(self, options: dict[str, Any] | None) -> tuple[dict[str, Any] | None, Callable[[], Any] | None]:
        """Begin an episode: return the options for the world, and what makes it if it must be made anew."""
        options = dict(options or {})
        number, task = options.pop(EPISODE, 0), options.get("task", self.task)
        anew = (self._fresh and self._used and number == 0) or (self._by_task and not _same(task, self.task))
        self.task, self._used, self.later = task, True, number > 0
        return options or None, (lambda: self._make(task)) if anew else None


def _same(one: Any, other: Any) -> bool:
    # Tasks may be anything: arrays have no == that says yes or no.
    return one is other or cloudpickle.dumps(one) == cloudpickle.dumps(other)


class TrialEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A world with one agent in which trials are played."""

    def __init__(self, env: gymnasium.Env[Any, Any], renewal: Renewal, view: TrialView | None) -> None:
        super().__init__(env)
        self._renewal, self._trial_view = renewal, view
        self._eye = None if view is None else view.of(env.observation_space, env.action_space)
        self._reward, self._action = 0.0, None
        if self._eye is not None:
            self.observation_space = self._eye.space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        options, make = self._renewal.begin(options)
        if make is not None:
            self.env.close()
            self.env = make()
        observation, info = self.env.reset(seed=seed, options=options)
        if self._eye is not None:
            self._eye.begin(_shown_task(self._trial_view, self._renewal, self.env))
            if not self._renewal.later:
                self._reward, self._action = 0.0, None
            observation = self._eye.see(observation, self._reward, self._action, boundary=self._renewal.later)
        return observation, info

    def step(self, action: Any) -> Any:
        if self._eye is None:
            return self.env.step(action)
        observation, reward, *given = self.env.step(action)
        self._reward, self._action = float(reward), action
        return self._eye.see(observation, self._reward, action), reward, *given


class TrialAgents(WrappedAgents):
    """The same for a world with several agents: each sees the task, its own reward, and the flag when it first acts."""

    def __init__(self, world: AgentWorld, renewal: Renewal, view: TrialView | None) -> None:
        super().__init__(world)
        self._renewal, self._trial_view = renewal, view
        self._eyes = _eyes(self._world.spec(), view)
        self._new: set[AgentId] = set()  # those who have not acted yet in a later episode
        self._rewards: dict[AgentId, float] = {}
        self._actions: dict[AgentId, Action] = {}

    def spec(self) -> WorldSpec:
        spec = self._world.spec()
        if not self._eyes:
            return spec
        seen = {agent: eye.space for agent, eye in self._eyes.items()}
        return WorldSpec(spec.agents, seen, spec.action_spaces, spec.action_names, spec.facts)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        options, make = self._renewal.begin(options)
        if make is not None:
            self._world.close()
            self._world = make()
            self.native = self._world.native
        outcome = super().reset(seed, options)
        if self._eyes:
            task = _shown_task(self._trial_view, self._renewal, self.native)
            for eye in self._eyes.values():
                eye.begin(task)
        self._new = set(self._eyes) if self._renewal.later else set()
        if not self._renewal.later:
            self._rewards, self._actions = {}, {}
        return self._seen(outcome)

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        self._actions.update(actions if self._eyes else {})
        return self._seen(super().step(actions))

    def _seen(self, outcome: Outcome) -> Outcome:
        if self._eyes:
            self._rewards.update(outcome.rewards)
            outcome.observations = {
                agent: self._eyes[agent].see(
                    one, self._rewards.get(agent, 0.0), self._actions.get(agent), boundary=agent in self._new
                )
                for agent, one in outcome.observations.items()
            }
            self._new.difference_update(outcome.acting)  # these act on what they see now
        return outcome


def _eyes(spec: WorldSpec, view: TrialView | None) -> dict[AgentId, ObservationView]:
    if view is None:
        return {}
    return {agent: view.of(space, spec.action_spaces[agent]) for agent, space in spec.observation_spaces.items()}


def _shown_task(view: TrialView | None, renewal: Renewal, world: Any) -> Any:
    if view is None or view.form is None or not view.asks_world:
        return renewal.task
    task = told_task(world)
    if not view.form.fits(task):
        raise InvalidOutput(f"a world must tell tasks of one form, got {task!r} after others", Place("resetting"))
    return task


def told_task(world: Any) -> Any:
    """Return the task that a world says it has.

    Raises:
        UsageError: if it says nothing about it.
    """
    inside = getattr(world, "unwrapped", world)
    for name in TOLD_BY:
        if (found := getattr(inside, name, None)) is not None:
            return found() if callable(found) else found
    raise UsageError(
        f"oracle=True needs a world that tells its task, and {type(inside).__name__} does not; give it a method "
        f"{TOLD_BY[0]}()"
    )
