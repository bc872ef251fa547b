"""What a world tells of its episodes beside rewards: statistics, also by agent, the numbers in its infos, and replays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from pettingzoo import ParallelEnv

import stretto
from stretto.cli.app import main
from stretto.missions.mission import Mission


class Race(ParallelEnv):
    """Two run until each has come as far as it is told to; infos say how far they have come."""

    metadata = {"name": "race"}  # noqa: RUF012  as PettingZoo has it

    def __init__(self):
        self.possible_agents = ["ann", "bob"]

    def observation_space(self, agent):
        return spaces.Discrete(9)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.far = list(self.possible_agents), {"ann": 0, "bob": 0}
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions):
        ends, infos = {"ann": 2, "bob": 4}, {}
        for agent in actions:
            self.far[agent] += 1
            infos[agent] = {
                "far": np.int64(self.far[agent]),
                "first": agent == "ann",
                "note": "runs",
                "mask": np.ones(2),
            }
        over = {agent: self.far[agent] == ends[agent] for agent in actions}
        self.agents = [agent for agent in self.agents if not over.get(agent)]
        rewards = dict.fromkeys(actions, 1.0)
        return {agent: self.far[agent] for agent in actions}, rewards, over, dict.fromkeys(actions, False), infos


class ScoredRace(Race):
    def statistics(self):
        return {"far": self.far, "longest": max(self.far.values())}


class WritesReplays(CartPoleEnv):
    def save_replay(self, path):
        written = Path(f"{path}.pole")
        written.write_text(f"{self.state[0]:.3f}")
        return written


@pytest.mark.parametrize("jobs", [0, 1])
def test_the_numbers_in_the_last_info_of_each_agent_are_its_statistics(jobs):
    (record,) = stretto.evaluate(Race, "random", episodes=1, jobs=jobs).records
    assert record.agent_statistics == {"far": {"ann": 2.0, "bob": 4.0}, "first": {"ann": 1.0, "bob": 0.0}}
    assert record.statistics == {"far": 3.0, "first": 0.5}


def test_statistics_that_a_world_offers_are_all_there_are_and_may_be_by_agent():
    report = stretto.evaluate(ScoredRace, "random", episodes=1, jobs=0)
    (record,) = report.records
    assert (record.statistics, record.agent_statistics) == (
        {"far": 3.0, "longest": 4.0},
        {"far": {"ann": 2.0, "bob": 4.0}},
    )
    assert "agent_statistics.far.ann" in report.to_csv().splitlines()[0]


def test_worlds_write_replays_of_their_own_kind_into_the_folder(tmp_path):
    missions = [Mission("pole", WritesReplays), Mission("plain", CartPoleEnv)]
    report = stretto.evaluate(missions, "random", episodes=2, steps=3, jobs=1, out=tmp_path / "run", replays=True)
    written = [record.timing.get("replay") for record in report.records]
    assert written == ["replays/pole-random-0.pole", "replays/pole-random-1.pole", None, None]
    assert all((tmp_path / "run" / path).read_text() for path in written[:2])
    with pytest.raises(stretto.UsageError, match="replays are written into a folder, got none"):
        stretto.evaluate(missions, "random", replays=True)


def test_given_seeds_are_played_one_an_episode():
    report = stretto.evaluate("CartPole-v1", "random", episode_seeds=[7, 3, 7], steps=30, jobs=0)
    assert [record.seed for record in report.records] == [7, 3, 7]
    assert report.plan["episode_seeds"] == [7, 3, 7]
    assert report.records[0].steps == report.records[2].steps
    for seeds, only in (([1, -2], None), ([1.5], None), ([1, 2], [2])):
        with pytest.raises(stretto.UsageError, match="episode_seeds"):
            stretto.evaluate("CartPole-v1", "random", episode_seeds=seeds, only=only)


def test_given_seeds_come_from_a_file_or_stand_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("seeds.txt").write_text("7\n3\n")
    words = ["eval", "-m", "CartPole-v1", "-p", "random,name=base", "-s", "9", "-j", "0", "--quiet", "--format", "json"]
    seen = []
    for text in ("seeds.txt", "7,3"):
        assert main([*words, "--episode-seeds", text]) == 0
        seen.append(json.loads(capsys.readouterr().out)["episodes"])
    assert [[(one["label"], one["seed"]) for one in episodes] for episodes in seen] == [[("base", 7), ("base", 3)]] * 2
    for text, more, told in (
        ("gone.txt", [], "got 'gone.txt' (["),
        ("7,3", ["-e", "3"], "--episode-seeds has 2 episodes, got --episodes 3"),
    ):
        assert main([*words, "--episode-seeds", text, *more]) == 2
        assert told in capsys.readouterr().err
