"""Runs in folders: saved now and then, gone on with to the same weights, and played as policies."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import stretto

torch = pytest.importorskip("torch")

from stretto import run_checkpoints  # noqa: E402
from stretto.errors import CheckpointSkipped, NotResumable, UsageError  # noqa: E402
from stretto.evaluation.evaluate import evaluate  # noqa: E402
from stretto.policies.spec import PolicySpec  # noqa: E402
from stretto.run_checkpoints import all_checkpoints, newest_checkpoint, write_checkpoint  # noqa: E402
from stretto.training.report import TrainingReport  # noqa: E402
from stretto.training.train import train  # noqa: E402

TINY = {"ppo": {"rows": 16, "batch": 32, "epochs": 1, "network": {"widths": [16]}}, "checkpoint": {"every": 100}}


def trained(out: Path | None, steps: int = 400, world: Any = "CartPole-v1", **how: Any) -> TrainingReport:
    how = {"num_envs": 4, "backend": "serial", "config": {**TINY, "preset": None}, "seed": 3, **how}
    return train(world, steps=steps, out=out, **how)


def weights(report: TrainingReport) -> dict[str, str]:
    return {agent: one.weights for agent, one in report.agents.items()}


def rows_of(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "timing"} for row in rows]


class Stopped(Exception):
    pass


def stopped_after(out: Path, intervals: int, **how: Any) -> None:
    """Begin a run that is broken off after some intervals, as by a failure."""

    def stop(interval: Any) -> None:
        if interval.number == intervals:
            raise Stopped

    with pytest.raises(Stopped):
        trained(out, on_interval=stop, **how)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingReport]:
    """A run that was never interrupted."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    return out, trained(out)


def test_a_run_that_goes_on_has_the_weights_and_metrics_of_one_that_was_never_interrupted(
    whole: tuple[Path, TrainingReport], tmp_path: Path
) -> None:
    out, report = whole
    stopped_after(tmp_path / "run", 5)
    elsewhere = {**TINY, "preset": None, "learner_set": "threads", "parallel": {"num_workers": 2}}
    resumed = trained(tmp_path / "run", resume=True, backend="thread", config=elsewhere)
    assert weights(resumed) == weights(report)
    assert resumed.summary()["agents"] == report.summary()["agents"]
    assert rows_of(tmp_path / "run") == rows_of(out)
    assert len(resumed.history) == len(report.history)


def test_a_run_goes_on_with_its_blocks_in_other_parts(tmp_path: Path) -> None:
    ppo = {**TINY["ppo"], "normalize_rewards": True, "normalize_observations": True}
    how: Any = {"world": "foundry_1", "cogs": 3, "backend": "thread", "config": {**TINY, "preset": None, "ppo": ppo}}
    wanted = weights(trained(None, **how))
    for first, then in (("stacked", "threads"), ("threads", "stacked")):
        parted: Any = {
            name: {**how["config"], "learner_set": name, "parallel": {"num_workers": 2}} for name in (first, then)
        }
        stopped_after(tmp_path / first, 5, **{**how, "config": parted[first]})
        assert weights(trained(tmp_path / first, resume=True, **{**how, "config": parted[then]})) == wanted


def test_a_run_without_a_checkpoint_begins_again(whole: tuple[Path, TrainingReport], tmp_path: Path) -> None:
    stopped_after(tmp_path / "run", 2)
    assert not all_checkpoints(tmp_path / "run")
    assert weights(trained(tmp_path / "run", resume=True)) == weights(whole[1])
    assert rows_of(tmp_path / "run") == rows_of(whole[0])


def test_a_run_may_go_on_for_longer_unless_a_schedule_follows_its_length(tmp_path: Path) -> None:
    wanted = weights(trained(None, 600))
    trained(tmp_path / "run", 300)
    assert weights(trained(tmp_path / "run", 600, resume=True)) == wanted
    scheduled = {**TINY, "preset": None, "ppo": {**TINY["ppo"], "learning_rate": {"begin": 1e-3, "end": 0.0}}}
    trained(tmp_path / "other", 100, config=scheduled)
    with pytest.raises(UsageError, match="scheduled_steps was 100"):
        trained(tmp_path / "other", 200, config=scheduled, resume=True)


def test_changed_settings_are_refused_and_make_a_fork_in_a_new_folder(
    whole: tuple[Path, TrainingReport], tmp_path: Path
) -> None:
    out, _ = whole
    other = {**TINY, "preset": None, "ppo": {**TINY["ppo"], "epochs": 2}}
    shutil.copytree(out, tmp_path / "run")
    with pytest.raises(UsageError, match=r"only the same .* and config\.ppo\.epochs was 1 in .* is 2 now"):
        trained(tmp_path / "run", 600, config=other, resume=True)
    fork = trained(tmp_path / "fork", 600, config=other, resume=out)
    assert rows_of(tmp_path / "fork")[: len(rows_of(out))] == rows_of(out)
    assert fork.steps >= 600
    wide = {**TINY, "preset": None, "ppo": {**TINY["ppo"], "network": {"widths": [40]}}}
    with pytest.raises(UsageError, match="with the learners that it was saved with"):
        trained(tmp_path / "wide", 600, config=wide, resume=out)
    plan = json.loads((tmp_path / "fork/plan.json").read_text())
    assert plan["timing"]["invocations"][0]["forked_from"] == str(out)


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    whole: tuple[Path, TrainingReport], tmp_path: Path
) -> None:
    shutil.copytree(whole[0], tmp_path / "run")
    newest, before = all_checkpoints(tmp_path / "run")[:2]
    state = next(newest.glob("state-*.safetensors"))
    state.write_bytes(state.read_bytes()[:-1] + b"?")
    with pytest.warns(CheckpointSkipped, match=newest.name):
        assert newest_checkpoint(tmp_path / "run")["state.json"].parent == before
    with pytest.warns(CheckpointSkipped, match=newest.name):
        assert weights(trained(tmp_path / "run", resume=True)) == weights(whole[1])
    shutil.rmtree(tmp_path / "run/checkpoints")
    (tmp_path / "run/checkpoints").mkdir()
    with pytest.raises(UsageError, match="a run must have a whole checkpoint, got none"):
        newest_checkpoint(tmp_path / "run")


def test_the_last_checkpoints_stay_and_the_best(tmp_path: Path) -> None:
    for steps, score in enumerate([1.0, 5.0, None, 2.0, 3.0], 1):
        write_checkpoint(tmp_path, steps, {"x.json": "{}"}, score, keep=2)
    assert [int(path.name) for path in all_checkpoints(tmp_path)] == [5, 4, 2]


def test_a_full_disk_or_a_folder_that_vanished_does_not_end_a_run(
    whole: tuple[Path, TrainingReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def vanish(interval: Any) -> None:
        if interval.number == 3:
            shutil.move(tmp_path / "run", tmp_path / "away")
        if interval.number == 5:
            shutil.move(tmp_path / "away", tmp_path / "run")

    with pytest.warns(CheckpointSkipped, match="could not be written into"):
        assert weights(trained(tmp_path / "run", on_interval=vanish)) == weights(whole[1])
    assert rows_of(tmp_path / "run") == rows_of(whole[0])
    monkeypatch.setattr(run_checkpoints, "write_folder", full)
    with pytest.warns(CheckpointSkipped, match="No space left"):
        assert weights(trained(tmp_path / "full")) == weights(whole[1])


def test_a_folder_that_vanished_for_good_costs_files_and_no_report(
    whole: tuple[Path, TrainingReport], tmp_path: Path
) -> None:
    def vanish(interval: Any) -> None:
        if interval.number == 2:
            shutil.rmtree(tmp_path / "run")

    with pytest.warns(CheckpointSkipped) as told:
        assert weights(trained(tmp_path / "run", on_interval=vanish)) == weights(whole[1])
    said = [str(one.message) for one in told]
    assert "the summary could not be written into" in said[-1]
    assert all("the checkpoint after" in one for one in said[:-1])


def test_a_run_that_began_with_weights_and_was_killed_early_begins_with_them_again(
    whole: tuple[Path, TrainingReport], tmp_path: Path
) -> None:
    wanted = weights(trained(None, 200, init_from=whole[0]))
    stopped_after(tmp_path / "run", 2, steps=200, init_from=whole[0])
    assert weights(trained(tmp_path / "run", 200, resume=True)) == wanted


class Odd:
    """A learner of one's own whose state is more than JSON can hold."""

    def __init__(self, observation_space: Any, action_space: Any, seed: int) -> None:
        pass

    def act(self, observations: Any, numbers: Any) -> Any:
        return (numbers[:, 0] * 2).astype(int)

    def learn(self, seen: Any) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"seen": {1, 2}}

    def load_state_dict(self, state: Any) -> None:
        pass


def test_what_cannot_be_saved_exactly_is_said_before_the_run_starts(tmp_path: Path) -> None:
    order: list[Any] = []
    odd = {"config": {"checkpoint": {"every": 50}}, "learner": Odd}
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, *_: order.append(category)
        trained(tmp_path / "run", 100, on_interval=order.append, **odd)
    assert order[0] is NotResumable
    assert order.count(NotResumable) == 1
    with pytest.raises(UsageError, match="weights alone; begin another"), warnings.catch_warnings():
        warnings.simplefilter("ignore", NotResumable)
        trained(tmp_path / "run", 200, resume=True, **odd)


def test_a_run_begins_with_the_weights_of_another(whole: tuple[Path, TrainingReport], tmp_path: Path) -> None:
    frozen = {**TINY, "preset": None, "ppo": {**TINY["ppo"], "learning_rate": 0.0}}
    assert weights(trained(None, 60, config=frozen, init_from=whole[0])) == weights(whole[1])
    wide = {**TINY, "preset": None, "ppo": {**TINY["ppo"], "network": {"widths": [8]}}}
    with pytest.raises(UsageError, match="weights of the same networks"):
        trained(None, 60, config=wide, init_from=whole[0])
    with pytest.raises(UsageError, match="is none; name the folder"):
        trained(None, 60, init_from=tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"must be one that has learned, got nobody; in .* are agent_0"):
        trained(None, 60, init_from=f"{whole[0]}#nobody")


def test_a_killed_run_goes_on(whole: tuple[Path, TrainingReport], tmp_path: Path) -> None:
    """The process is killed in the middle of an interval, right after a checkpoint."""
    code = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        from tests.training.test_checkpoints import trained
        def kill(interval):
            if interval.number == 5:
                os.kill(os.getpid(), signal.SIGKILL)
        trained(Path({str(tmp_path / "run")!r}), on_interval=kill)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(stretto.__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    assert weights(trained(tmp_path / "run", resume=True)) == weights(whole[1])


# ---- trained agents as policies ----


class CatsAndDogs:
    """Agents of two kinds, by turns, that die at any time: PettingZoo's parallel API, without PettingZoo."""

    metadata = {"name": "cats and dogs"}  # noqa: RUF012  as PettingZoo spells it
    render_mode = None
    possible_agents = ("cat_0", "dog_0", "cat_1", "dog_1")

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (3 if agent.startswith("cat") else 2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3) if agent.startswith("cat") else spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.np_random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        return self._see(), {agent: {} for agent in self.agents}

    def _see(self) -> dict[str, Any]:
        drawn = {agent: self.np_random.uniform(-1, 1, self.observation_space(agent).shape) for agent in self.agents}
        return {agent: one.astype(np.float32) for agent, one in drawn.items()}

    def step(self, actions: dict[str, Any]) -> Any:
        living, seen = list(self.agents), self._see()
        dead = {agent: bool(self.np_random.random() < 0.1) for agent in living}
        self.agents = [agent for agent in living if not dead[agent]]
        rewards = {agent: float(np.sum(actions[agent])) for agent in living}
        return seen, rewards, dead, dict.fromkeys(living, False), {agent: {} for agent in living}

    def close(self) -> None:
        pass


def test_agents_of_several_kinds_go_on_and_play(tmp_path: Path) -> None:
    wanted = trained(None, world=CatsAndDogs)
    stopped_after(tmp_path / "run", 4, world=CatsAndDogs)
    assert weights(trained(tmp_path / "run", world=CatsAndDogs, resume=True)) == weights(wanted)
    found, learned = (evaluate(CatsAndDogs, policy, episodes=2, seed=1) for policy in (tmp_path / "run", wanted.policy))
    assert [one.rewards for one in found.records] == [one.rewards for one in learned.records]


def test_a_run_is_a_policy_that_plays_as_its_report_says(whole: tuple[Path, TrainingReport]) -> None:
    out, report = whole
    wanted = evaluate("CartPole-v1", report.policy, episodes=3, seed=1)
    found = evaluate("CartPole-v1", PolicySpec.of(out), episodes=3, seed=1)
    assert [one.reward for one in found.records] == [one.reward for one in wanted.records]


def test_one_agent_of_a_run_acts_for_all_and_agents_of_two_runs_play_together(tmp_path: Path) -> None:
    trained(tmp_path / "run", 100, "foundry_1")
    one = evaluate("foundry_1", f"{tmp_path / 'run'}#cog_1", episodes=1, steps=20)
    assert set(one.records[0].policies.values()) == {f"{tmp_path / 'run'}#cog_1"}
    both = evaluate(
        "foundry_1",
        [f"{tmp_path / 'run'},name=a", f"{tmp_path / 'run'}#cog_0,name=b"],
        mix=True,
        episodes=1,
        steps=20,
    )
    assert set(both.records[0].policies.values()) == {"a", "b"}
    with pytest.raises(UsageError, match="every agent must have learned, got cog_9"):
        evaluate("foundry_1", f"{tmp_path / 'run'}#cog_9", episodes=1)


def test_agents_do_not_play_in_worlds_that_they_have_not_learned_in(whole: tuple[Path, TrainingReport]) -> None:
    with pytest.raises(UsageError, match="agent_0 sees Box"):
        evaluate("Acrobot-v1", str(whole[0]), episodes=1)


def test_the_weights_of_a_run_are_on_record(whole: tuple[Path, TrainingReport], tmp_path: Path) -> None:
    evaluate("CartPole-v1", str(whole[0]), episodes=1, out=tmp_path / "eval")
    plan = json.loads((tmp_path / "eval/plan.json").read_text())
    path = newest_checkpoint(whole[0])["policies.safetensors"]
    assert path.name.split("-")[1][:16] in json.dumps(plan["identity"])
