"""A learner that raises: the run stops and says whose it is, or that agent acts on and learns no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

pytest.importorskip("torch")

import stretto
from stretto.errors import LearnerStopped

AGENTS = "a", "b", "c"


class Paid(ParallelEnv):  # type: ignore[misc]  # PettingZoo publishes no types
    """Pays every agent what it does; from its tenth step on, an episode pays `who` a number that no learner likes."""

    render_mode = None
    metadata = {"name": "paid"}  # noqa: RUF012  as PettingZoo has it

    def __init__(self, who: str = "") -> None:
        self.possible_agents, self._who = list(AGENTS), who

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-10, 10, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self._steps = list(AGENTS), 0
        return self._seen(), {agent: {} for agent in AGENTS}

    def _seen(self) -> dict[str, Any]:
        return {agent: np.full(2, self._steps / 10, np.float32) for agent in AGENTS}

    def step(self, actions: dict[str, Any]) -> Any:
        self._steps += 1
        rewards = {agent: float(action) for agent, action in actions.items()}
        if self._who and self._steps >= 10:
            rewards[self._who] = -777.0
        over = dict.fromkeys(AGENTS, self._steps == 40)
        return self._seen(), rewards, dict.fromkeys(AGENTS, False), over, {agent: {} for agent in AGENTS}


class Picky:
    """Counts what it was paid, which is all that it acts by, and raises when it sees -777."""

    def __init__(self, observation_space: Any, action_space: Any, seed: int) -> None:
        self.paid = np.zeros(1)

    def act(self, observations: Any, numbers: Any) -> Any:
        return (numbers[:, 0] < 1 / (2 + self.paid[0] % 3)).astype(int)

    def learn(self, seen: Any) -> dict[str, float]:
        self.paid += seen.rewards.sum()
        if (seen.rewards == -777.0).any():
            raise ValueError("nobody pays -777")
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"paid": self.paid}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.paid = np.array(state["paid"].numpy())


def trained(who: str, out: Path | None = None, **config: Any) -> stretto.TrainingReport:
    settings = {"preset": None, "own": {"rows": 6}, **config}
    given: dict[str, Any] = {"steps": 72, "num_envs": 2, "seed": 3, "backend": "serial", "config": settings}
    return stretto.train(Paid, f"{__file__}:Picky", env_kwargs={"who": who}, out=out, **given)


WAYS = {
    "in one thread": {"loop": "sync"},
    "in processes": {"loop": "sync", "learner_set": "processes", "block": 2},
}


@pytest.mark.parametrize("config", WAYS.values(), ids=WAYS)
def test_the_run_stops_and_names_the_agent(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="nobody pays -777") as raised:
        trained("b", **config)
    assert "agent b" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("loop", ["sync", "pipelined"])
def test_a_frozen_agent_acts_on_with_what_it_had_learned_and_the_others_are_not_touched(
    loop: str, tmp_path: Path
) -> None:
    undisturbed, found = trained("", loop=loop), []
    for number, where in enumerate(({"learner_set": "threads"}, {"learner_set": "processes", "block": 2})):
        with pytest.warns(LearnerStopped, match="b learns no more: it raised ValueError: nobody pays -777") as told:
            found.append(trained("b", tmp_path / str(number), loop=loop, on_failure="freeze", **where))
        assert len(told) == 1
        assert 'raise ValueError("nobody pays -777")' in str(told[0].message)
        assert "Traceback" in (tmp_path / str(number) / "run.log").read_text()
    assert found[0].agents == found[1].agents
    report = found[0]
    for agent in "a", "c":
        assert report.agents[agent] == undisturbed.agents[agent]
    assert report.agents["b"].stopped == "it raised ValueError: nobody pays -777"
    assert 0 < report.agents["b"].updates < report.agents["a"].updates
    before = {"sync": 1, "pipelined": 1}[loop]  # the second interval is the first one that pays so
    assert report.agents["b"].updates == before
