"""Policies that keep things between episodes are told when an episode begins."""

from __future__ import annotations

import pytest

import stretto


class Counting(stretto.MultiAgentPolicy):
    """Its agents act by the number of their steps in this episode, which is counted in what they share."""

    def __init__(self, world):
        super().__init__(world)
        self.asked = {}

    def begin_episode(self, episode):
        self.asked = {"episode": episode}

    def agent_policy(self, agent):
        return CountingAgent(self, agent)


class CountingAgent(stretto.AgentPolicy):
    def __init__(self, shared, agent):
        self.shared, self.agent = shared, agent

    def step(self, observation):
        count = self.shared.asked[self.agent] = self.shared.asked.get(self.agent, 0) + 1
        return (count + self.shared.asked["episode"]) % 5


@pytest.mark.parametrize(("jobs", "strategy"), [(0, "sequential"), (1, "processes"), (2, "threads"), (2, "batched")])
def test_what_a_policy_keeps_is_begun_anew_with_every_episode_wherever_it_is_played(jobs, strategy):
    def played(**how):
        report = stretto.evaluate("foundry_1", Counting, episodes=3, steps=20, cogs=2, **how)
        return [(record.failure, record.rewards, record.statistics) for record in report.records]

    assert played(jobs=jobs, strategy=strategy) == played(jobs=0, strategy="sequential", reverse=True)


def test_a_hook_that_raises_fails_its_episode():
    class Refusing(Counting):
        def begin_episode(self, episode):
            if episode == 1:
                raise RuntimeError("not this one")

    report = stretto.evaluate("pointgoal", Refusing, episodes=2, steps=1, jobs=0)
    assert "not this one" in report.records[1].failure.message
