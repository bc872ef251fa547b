"""Games that PettingZoo shows as parallel environments are stepped past its wrappers, and nothing else changes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from stretto.adapters.pettingzoo import ParallelAgents

pettingzoo = pytest.importorskip("pettingzoo")
from pettingzoo.utils import AgentSelector, AssertOutOfBoundsWrapper, OrderEnforcingWrapper  # noqa: E402
from pettingzoo.utils.conversions import aec_to_parallel_wrapper  # noqa: E402

NAMES = ["a", "b", "c"]


class Countdown(pettingzoo.AECEnv):  # type: ignore[misc]
    """Each agent counts its own actions up to a number of its own, and is then dead; whoever asks in between is counted."""

    render_mode = None

    def __init__(self) -> None:
        self.metadata = {"is_parallelizable": True, "name": "countdown"}
        self.possible_agents = list(NAMES)
        self.asked = 0

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 100, (2,), np.int64)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(NAMES)
        self.totals = dict.fromkeys(NAMES, 0)
        self.rewards, self._cumulative_rewards = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0.0)
        self.terminations, self.truncations = dict.fromkeys(NAMES, False), dict.fromkeys(NAMES, False)
        self.infos: dict[str, Any] = {agent: {} for agent in NAMES}
        self._selector = AgentSelector(self.agents)
        self.agent_selection = self._selector.next()

    def observe(self, agent: str) -> Any:
        self.asked += 1
        return np.array([self.totals[agent], self.asked])

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self.totals[agent] += int(action)
        self.rewards = dict.fromkeys(self.agents, 0.0) | {agent: float(action)}
        self.infos = {one: {"by": agent} for one in self.agents}
        self._accumulate_rewards()
        if not self._selector.is_last():
            self.agent_selection = self._selector.next()
            return
        for one in self.agents:
            self.terminations[one] = self.totals[one] > 5 + 3 * NAMES.index(one)
        living = [one for one in self.agents if not self.terminations[one]]
        self._selector.reinit(living)
        self.agent_selection = self._selector.next() if living else self.agents[0]
        self._deads_step_first()


class TellsLast(Countdown):
    """Has its own idea of what is asked before a step."""

    def last(self, observe: bool = True) -> Any:
        self.asked += 100
        return super().last(observe)


def wrapped(game: Any) -> Any:
    return aec_to_parallel_wrapper(OrderEnforcingWrapper(AssertOutOfBoundsWrapper(game)))


def check_same(make: Any, episodes: int = 2) -> None:
    """Play the same actions with the environment itself and by our adapter."""
    plain, ours = make(), ParallelAgents(make())
    draw = np.random.default_rng(0)
    for episode in range(episodes):
        seen, infos = plain.reset(seed=episode)
        outcome = ours.reset(episode)
        while plain.agents:
            assert str(outcome.observations) == str(seen)
            assert str(outcome.infos) == str(infos)
            assert outcome.acting == tuple(plain.agents) == tuple(ours.native.agents)
            actions = {agent: np.int64(draw.integers(plain.action_space(agent).n)) for agent in plain.agents}
            seen, rewards, terminated, truncated, infos = plain.step(actions)
            outcome = ours.step(actions)
            given = outcome.rewards, outcome.terminated, outcome.truncated
            assert given == (dict(rewards), terminated, truncated)
        assert outcome.acting == ()


@pytest.mark.parametrize("game", [Countdown, TellsLast])
def test_a_game_gives_what_its_wrappers_give(game):
    check_same(lambda: wrapped(game()))


def test_a_game_of_mpe_gives_what_its_wrappers_give():
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    check_same(lambda: spread.parallel_env(N=3, max_cycles=7))


def test_wrappers_are_not_asked_once_the_game_was_reset(monkeypatch):
    asked = []
    ours = ParallelAgents(wrapped(Countdown()))
    ours.reset(0)
    monkeypatch.setattr(OrderEnforcingWrapper, "__getattr__", lambda self, name: asked.append(name))
    ours.step(dict.fromkeys(NAMES, 1))
    assert not asked


def test_an_action_that_a_wrapper_refuses_is_refused_as_ever():
    ours = ParallelAgents(wrapped(Countdown()))
    ours.reset(0)
    with pytest.raises(AssertionError, match="action is not in action space"):
        ours.step({"a": 1, "b": 9, "c": 1})
    assert ours.native.unwrapped.totals == {"a": 1, "b": 0, "c": 0}


class Louder(OrderEnforcingWrapper):  # type: ignore[misc]
    """Doubles actions."""

    def step(self, action: Any) -> None:
        super().step(None if action is None else min(3, 2 * action))


def test_a_wrapper_of_another_type_is_stepped_as_ever():
    make = lambda: aec_to_parallel_wrapper(Louder(Countdown()))  # noqa: E731
    check_same(make)
    ours = ParallelAgents(make())
    ours.reset(0)
    ours.step(dict.fromkeys(NAMES, 1))
    assert ours.native.unwrapped.totals == dict.fromkeys(NAMES, 2)


def test_a_step_that_somebody_has_put_into_a_wrapper_is_called():
    env = wrapped(Countdown())
    calls = []
    step = env.aec_env.step
    env.aec_env.step = lambda action: calls.append(action) or step(action)
    ours = ParallelAgents(env)
    ours.reset(0)
    ours.step(dict.fromkeys(NAMES, 1))
    assert calls == [1, 1, 1]


def test_a_copy_of_a_world_steps_its_own_game():
    ours = ParallelAgents(wrapped(Countdown()))
    ours.reset(0)
    other = copy.deepcopy(ours)
    other.step(dict.fromkeys(NAMES, 2))
    assert other.native.unwrapped.totals == dict.fromkeys(NAMES, 2)
    assert ours.native.unwrapped.totals == dict.fromkeys(NAMES, 0)
