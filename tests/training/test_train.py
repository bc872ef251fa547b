"""stretto.train: the run around the loop."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import stretto
from stretto.budget import CpuBudget
from stretto.errors import BlocksMatter, UsageError

pytest.importorskip("torch")

from stretto.training import run
from stretto.training.interrupts import interrupts_deferred
from stretto.training.report import TrainingInterrupted
from stretto.training.sets import LearnerSet

SMALL: dict[str, Any] = {"ppo": {"rows": 16, "batch": 32, "epochs": 2}}


def trained(**changes: Any) -> stretto.TrainingReport:
    given = {"steps": 400, "num_envs": 4, "seed": 7, "config": SMALL, "backend": "serial", **changes}
    return stretto.train(given.pop("world", "CartPole-v1"), **given)


def test_a_run_reports_returns_updates_and_weights_of_each_agent() -> None:
    report = trained(world="foundry_1", cogs=3)
    assert list(report.agents) == ["cog_0", "cog_1", "cog_2"]
    intervals = len(report.history)
    for one in report.agents.values():
        assert one.updates == intervals * 2 * 2  # batches of 32 in 4 x 16 rows, twice
        assert len(one.weights) == 64
    assert len({one.weights for one in report.agents.values()}) == 3
    assert str(report).splitlines()[-1].startswith("cog_2: return ")


def test_weights_are_the_same_wherever_learners_and_worlds_are_computed() -> None:
    one = {agent: found.weights for agent, found in trained(world="foundry_1", cogs=3).agents.items()}
    for config in (
        {"learner_set": "threads"},
        {"learner_set": "sequential"},
        {"parallel": {"enabled": False}},
        {"block": 2},
        {"learner_set": "processes"},
    ):
        other = trained(world="foundry_1", cogs=3, config={**SMALL, **config}, budget=CpuBudget(2))
        assert {agent: found.weights for agent, found in other.agents.items()} == one, config


def test_long_runs_learn_in_parts_on_all_cores_and_find_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    short = trained(world="foundry_1", cogs=3, budget=CpuBudget(2))
    pids = []
    monkeypatch.setattr(run, "LONG", 0)
    closing = LearnerSet.close
    monkeypatch.setattr(LearnerSet, "close", lambda self: (pids.append(self.pids), closing(self)))
    assert trained(world="foundry_1", cogs=3, budget=CpuBudget(2)).agents == short.agents
    assert len(pids[0]) == 1  # the caller is the other worker
    pids.clear()
    assert trained(world="foundry_1", cogs=3, budget=CpuBudget(1)).agents == short.agents
    assert not pids[0]


def test_a_training_interval_learns_after_so_many_epochs_and_skips_none() -> None:
    every = trained(config={**SMALL, "parallel": {"train_interval": 3}})
    steps = [row["steps"] for row in every.history]
    assert len(steps) == len(set(steps)) == 3  # 3 epochs of 16 rows of 4 environments, less the rows of resets
    assert all(150 < later - earlier <= 192 for earlier, later in zip([0, *steps], steps, strict=False))
    updates = [row["agents"]["agent_0"]["updates"] for row in every.history]
    assert updates == sorted(set(updates))


def test_a_folder_has_the_metrics_with_the_clock_apart_and_a_summary(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    reports = [trained(out=folder) for folder in folders]
    lines = [[json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] for folder in folders]
    assert all(row.pop("timing")["seconds"] > 0 for rows in lines for row in rows)
    assert lines[0] == lines[1]
    summary = json.loads((folders[0] / "summary.json").read_text())
    agent = summary["agents"]["agent_0"]
    assert agent["weights"] == reports[0].agents["agent_0"].weights
    assert set(agent) == {"return", "updates", "weights"}


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    trained(out=tmp_path / "run", steps=100)
    with pytest.raises(stretto.UsageError, match="was begun; choose another folder"):
        trained(out=tmp_path / "run", steps=100)


def test_a_callback_hears_of_each_interval() -> None:
    heard: list[int] = []
    report = trained(on_interval=lambda interval: heard.append(interval.number))
    assert heard == list(range(1, len(report.history) + 1))


def test_what_was_learned_is_a_policy_that_is_evaluated_like_any_other() -> None:
    report = trained(world="foundry_1", cogs=3, config={**SMALL, "block": 2})
    here, elsewhere = (stretto.evaluate("foundry_1", report.policy, cogs=3, episodes=2, jobs=jobs) for jobs in (0, 1))
    assert [one.rewards for one in here.records] == [one.rewards for one in elsewhere.records]
    with pytest.raises(stretto.UsageError, match="must be one that has learned, got cog_3"):
        stretto.evaluate("foundry_1", report.policy, cogs=4, episodes=1, jobs=0)


def test_held_out_episodes_are_played_every_so_many_steps_and_change_no_weight() -> None:
    report = trained(config={**SMALL, "evaluation": {"episodes": 3}}, eval_every=150)
    assert len(report.evaluations) == 3
    assert report.evaluations[-1]["steps"] == report.steps
    assert report.evaluations[-1] == report.history[-1]["evaluation"]
    assert report.agents == trained().agents
    played = stretto.evaluate("CartPole-v1", report.policy, episodes=3, seed=7, jobs=0)
    assert report.evaluations[-1]["return"] == sum(one.reward for one in played.records) / 3


def test_figures_of_the_users_own_are_kept_with_their_interval() -> None:
    report = trained(on_interval=lambda interval: {"ended": len(interval.returns.get("agent_0", []))})
    ended = sum(row["custom"]["ended"] for row in report.history)
    assert ended == report.history[-1]["agents"]["agent_0"]["episodes"] > 0


def test_a_preset_is_what_is_not_said_otherwise() -> None:
    assert trained(config=None, steps=50).config.ppo.discount == 0.98
    assert trained(config={"ppo": {"discount": 0.5}}, steps=50).config.ppo.discount == 0.5
    assert trained(config={"preset": None}, steps=50).config.ppo.discount == 0.99
    with pytest.raises(stretto.UsageError, match="no preset is called 'CartPol'; did you mean CartPole-v1"):
        trained(config={"preset": "CartPol"})


def test_a_machine_whose_kernels_are_not_exact_learns_in_the_blocks_of_the_plan_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stretto.policies.networks import layers

    exact = layers._product
    monkeypatch.setattr(layers, "_product", lambda *given: exact(*given) * (1 + 1e-6 * len(given[0])))
    weights = []
    for name in ("sequential", "stacked"):
        with pytest.warns(BlocksMatter, match="blocks of 3 are part of the plan"):
            report = trained(world="foundry_1", cogs=3, config={**SMALL, "learner_set": name})
        weights.append({agent: found.weights for agent, found in report.agents.items()})
    assert weights[0] == weights[1]


def test_a_log_says_in_which_process_and_thread_something_happens_to_which_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "stretto.training")
    config = {**SMALL, "learner_set": "threads", "block": 1}
    trained(world="foundry_1", cogs=2, config=config, out=tmp_path / "run", eval_every=200)
    lines = (tmp_path / "run" / "run.log").read_text().splitlines()
    learned = [line for line in lines if "agent cog_1: learned" in line]
    assert learned
    assert all(f"process {os.getpid()}, thread stretto-" in line for line in learned)
    assert any("agent -: held-out episodes after" in line for line in lines)


def test_ctrl_c_ends_a_run_with_its_interval_and_reports_what_was_learned(tmp_path: Path) -> None:
    def press(interval: Any) -> None:
        if interval.number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingInterrupted) as raised:
        trained(on_interval=press, out=tmp_path / "run")
    report = raised.value.report
    assert len(report.history) == 2
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / "run" / "summary.json").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_deferred(seconds=1e6) as pressed:
        signal.raise_signal(signal.SIGINT)
        assert pressed()
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it goes on")


def test_an_interval_that_takes_too_long_after_ctrl_c_is_interrupted() -> None:
    over = threading.Event()
    with pytest.raises(KeyboardInterrupt), interrupts_deferred(seconds=0.01):
        signal.raise_signal(signal.SIGINT)
        over.wait(60)
        pytest.fail("it goes on")


class Broken(gymnasium.Wrapper):
    """Raises in the episodes of some seeds."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed in self.seeds:
            raise ValueError("a seed that is not liked")
        return super().reset(seed=seed, options=options)

    seeds = frozenset[int]()


def test_a_held_out_episode_that_fails_ends_the_run_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = stretto.evaluate("CartPole-v1", "random", episodes=1, seed=7, jobs=0).records[0].seed
    monkeypatch.setattr(Broken, "seeds", frozenset([held_out]))
    with pytest.raises(stretto.StrettoError, match=r"a held-out episode failed after .*a seed that is not liked"):
        trained(wrappers=[Broken], eval_every=100)


@pytest.mark.parametrize(
    ("learner", "device", "rule"),
    [("ppo", "nowhere", "one that torch can compute on here, got nowhere"), ("dqn", "cuda", "cpu with dqn, got cuda")],
)
def test_a_device_that_cannot_be_is_refused_with_a_sentence(learner: str, device: str, rule: str) -> None:
    with pytest.raises(UsageError, match=f"device must be {rule}"):
        trained(learner=learner, config={"device": device})


def test_each_block_has_a_device_of_its_own_and_all_are_checked() -> None:
    one = trained(world="foundry_1", cogs=3, config={**SMALL, "block": 1})
    other = trained(world="foundry_1", cogs=3, config={**SMALL, "block": 1, "device": "cpu, cpu:0"})
    assert {name: found.weights for name, found in one.agents.items()} == {
        name: found.weights for name, found in other.agents.items()
    }
    with pytest.raises(UsageError, match="must be one that torch can compute on here, got nowhere"):
        trained(config={**SMALL, "device": "cpu,nowhere"})


def test_blocks_are_on_the_devices_in_turn() -> None:
    from gymnasium import spaces

    from stretto.core import AgentKind
    from stretto.training.blocks import learner_blocks

    kind = AgentKind(tuple("abcde"), spaces.Discrete(2), spaces.Discrete(2))
    blocks = learner_blocks([kind], 0, 4, 2, ["one", "two"])
    assert [(block.agents, block.device) for block in blocks] == [
        (("a", "b"), "one"),
        (("c", "d"), "two"),
        (("e",), "one"),
    ]


def test_agents_may_act_in_calls_of_fewer_rows_than_there_are_environments() -> None:
    whole, apart = (trained(config={**SMALL, "act_rows": rows}) for rows in ("auto", 2))
    assert whole.steps == apart.steps
    assert apart.agents["agent_0"].updates == whole.agents["agent_0"].updates
