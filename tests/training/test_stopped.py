"""An agent whose loss is not finite learns no more; the others go on as if nothing had happened."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

pytest.importorskip("torch")

import stretto
from stretto.cli.app import main
from stretto.errors import LearnerStopped
from stretto.safetensors import read_safetensors

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "own_learner.py"

AGENTS = "a/1", "b/2", "c/3"


class Spoilt(ParallelEnv):  # type: ignore[misc]  # PettingZoo publishes no types
    """What agents see and are paid depends on nothing that anybody does; in some episodes, one is paid or sees `wrong`."""

    render_mode = None

    def __init__(self, who: tuple[str, ...] = (), wrong: float = math.nan, *, sees: bool = False) -> None:
        self.metadata = {"name": "spoilt"}
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self._who, self._wrong, self._sees, self._bad, self._steps = who, wrong, sees, False, 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    @property
    def _now(self) -> bool:
        return self._bad and self._steps == 15

    def _seen(self) -> dict[str, Any]:
        seen = {agent: self._draw.standard_normal(3).astype(np.float32) for agent in AGENTS}
        if self._now and self._sees:
            seen.update(dict.fromkeys(self._who, np.full(3, self._wrong, np.float32)))
        return seen

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self._draw = list(AGENTS), np.random.default_rng(seed)
        self._bad, self._steps = self._draw.random() < 0.2, 0
        return self._seen(), {agent: {} for agent in AGENTS}

    def step(self, actions: dict[str, Any]) -> Any:
        self._steps += 1
        seen, rewards = self._seen(), dict(zip(AGENTS, self._draw.standard_normal(3).tolist(), strict=True))
        if self._now and not self._sees:
            rewards.update(dict.fromkeys(self._who, self._wrong))
        over = self._steps == 20
        self.agents = [] if over else self.agents
        return seen, rewards, dict.fromkeys(AGENTS, False), dict.fromkeys(AGENTS, over), {agent: {} for agent in AGENTS}


LEARNERS: dict[str, dict[str, Any]] = {
    "ppo": {"rows": 16, "batch": 16, "epochs": 2, "normalize_observations": True, "normalize_rewards": True},
    "dqn": {
        "rows": 16,
        "batch": 16,
        "updates": 4,
        "learning_starts": 16,
        "priority_exponent": 0.6,
        "epsilon": 0.1,
        "priority_correction": 0.5,
    },
    f"{EXAMPLE}:Reinforce": {"rows": 16},
}

SETS: dict[str, dict[str, Any]] = {
    "stacked": {},
    "sequential": {"learner_set": "sequential"},
    "threads": {"learner_set": "threads", "block": 2},
    "processes": {"learner_set": "processes", "block": 2},
}


def trained(world: Any, learner: str = "ppo", steps: int = 320, **changes: Any) -> stretto.TrainingReport:
    key = learner if learner in ("ppo", "dqn") else "own"
    config = {"preset": None, key: LEARNERS[learner], **changes.pop("config", {})}
    return stretto.train(world, learner, steps=steps, num_envs=2, seed=3, backend="serial", config=config, **changes)


def weights(report: stretto.TrainingReport) -> dict[str, str]:
    return {agent: one.weights for agent, one in report.agents.items()}


@pytest.mark.parametrize("learner", LEARNERS, ids=("ppo", "dqn", "own"))
def test_one_agent_is_stopped_and_the_others_learn_the_same_wherever_they_learn(learner: str) -> None:
    undisturbed = trained(Spoilt, learner)
    found = []
    for config in SETS.values():
        with pytest.warns(LearnerStopped, match=r"b/2 learns no more: in update \d+, its loss is not finite") as told:
            found.append(trained(partial(Spoilt, ("b/2",)), learner, config=config))
        assert len(told) == 1
    for report in found:
        assert weights(report) == weights(found[0])
        assert report.agents["b/2"] == found[0].agents["b/2"]
        assert report.steps == undisturbed.steps
        for agent in ("a/1", "c/3"):
            assert report.agents[agent] == undisturbed.agents[agent]
    stopped = found[0].agents["b/2"]
    assert stopped.stopped is not None
    assert stopped.stopped.endswith("its loss is not finite")
    assert 0 < stopped.updates < undisturbed.agents["b/2"].updates
    assert "b/2: return nan" not in str(found[0])


@pytest.mark.parametrize(
    ("learner", "wrong", "sees"),
    [("ppo", math.nan, False), ("ppo", math.inf, True), ("dqn", math.nan, False), ("dqn", math.inf, False)],
)
def test_who_is_stopped_acts_on_by_what_it_was_before_the_interval(
    learner: str, wrong: float, sees: bool, tmp_path: Path
) -> None:
    with pytest.warns(LearnerStopped):
        report = trained(partial(Spoilt, ("b/2",), wrong, sees=sees), learner, out=tmp_path / "run")
    row = next(row for row in report.history if "stopped" in row)
    assert list(row["stopped"]) == ["b/2"]
    before = trained(Spoilt, learner, steps=report.history[row["interval"] - 2]["steps"])
    assert report.agents["b/2"].weights == before.agents["b/2"].weights
    [member] = report.policy.kwargs["members"]
    assert all(np.isfinite(array).all() for array in member.state().values())
    [path] = (tmp_path / "run").glob("failed_b_2_*.safetensors")
    assert not all(np.isfinite(array).all() for array in read_safetensors(path).values())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["agents"]
    assert [agent for agent, one in summary.items() if "stopped" in one] == ["b/2"]
    assert "b/2 (seed 3) was stopped in update" in (tmp_path / "run" / "report.html").read_text()
    assert "ERROR" in (tmp_path / "run" / "run.log").read_text()


def test_who_is_stopped_stays_so_when_a_run_goes_on(tmp_path: Path) -> None:
    world = partial(Spoilt, ("b/2",))
    with pytest.warns(LearnerStopped):
        whole = trained(world, out=tmp_path / "whole")
    with pytest.warns(LearnerStopped):
        trained(world, steps=160, out=tmp_path / "run")
    resumed = trained(world, out=tmp_path / "run", resume=True)
    assert resumed.agents == whole.agents
    assert resumed.agents["b/2"].stopped is not None


def test_a_run_ends_when_nobody_is_left_to_learn(tmp_path: Path) -> None:
    with pytest.warns(LearnerStopped) as told:
        report = trained(partial(Spoilt, AGENTS), steps=100_000, out=tmp_path / "run")
    assert len(told) == 3
    assert report.steps < 200
    assert all(one.stopped is not None for one in report.agents.values())
    assert (tmp_path / "run" / "checkpoints" / f"{report.steps:012d}").is_dir()
    again = trained(partial(Spoilt, AGENTS), steps=100_000, out=tmp_path / "run", resume=True)
    assert again.agents == report.agents


def test_the_turn_of_who_is_stopped_goes_to_others() -> None:
    config = {"learners_an_interval": 2}
    with pytest.warns(LearnerStopped):
        report = trained(partial(Spoilt, ("b/2",)), config=config)
    updates = [row["agents"]["a/1"]["updates"] for row in report.history if "stopped" in row]
    assert len(set(updates)) == len(updates)


def test_the_command_line_says_so_in_a_table_and_by_its_exit_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = f"""import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_stopped
def make():
    return test_stopped.Spoilt(("b/2",))
"""
    (tmp_path / "spoilt.py").write_text(code)
    options = ["--steps", "320", "--envs", "2", "--set", "ppo.rows=16", "--set", "ppo.epochs=1", "--jobs", "0"]
    with pytest.warns(LearnerStopped):
        status = main(["train", "-m", f"{tmp_path / 'spoilt.py'}:make", *options])
    assert status == 1
    told = capfd.readouterr().out
    assert "stopped in" in told
    assert "its loss is not finite" in told
