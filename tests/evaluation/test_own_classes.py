"""Observations and actions of classes that only the user's main script has reach policies in every process."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from dataclasses import dataclass
import gymnasium
import stretto

@dataclass
class Seen:
    total: int

@dataclass
class Move:
    size: int

class Anything(gymnasium.Space):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
    def sample(self, mask=None, probability=None):
        return self.kind(int(self.np_random.integers(3)))
    def contains(self, value):
        return isinstance(value, self.kind)

class Pair:
    possible_agents, metadata, render_mode = ["a", "b"], {}, None
    def observation_space(self, agent):
        return Anything(Seen)
    def action_space(self, agent):
        return Anything(Move)
    @property
    def unwrapped(self):
        return self
    def reset(self, seed=None, options=None):
        self.agents, self.total = ["a", "b"], 0
        return dict.fromkeys(self.agents, Seen(0)), {}
    def step(self, actions):
        assert all(isinstance(action, Move) for action in actions.values()), actions
        self.total += sum(action.size for action in actions.values())
        agents, over = self.agents, self.total > 30
        self.agents = [] if over else agents
        flags = dict.fromkeys(agents, over)
        return dict.fromkeys(agents, Seen(self.total)), dict.fromkeys(agents, 1.0 * self.total), flags, flags, {}
    def close(self):
        pass

class Mine(stretto.AgentPolicy):
    def step(self, observation):
        assert isinstance(observation, Seen), observation
        return Move(1 + observation.total % 3 + int(self.rng.integers(2)))

found = []
for jobs, strategy in [(0, "sequential"), (0, "processes"), (2, "sequential"), (2, "processes")]:
    report = stretto.evaluate(Pair, [Mine, "random"], episodes=3, jobs=jobs, strategy=strategy, parallel_policy=True)
    assert all(record.failure is None for record in report.records), report.records
    found.append([record.rewards for record in report.records])
assert found[0] and all(one == found[0] for one in found), found
print("the same", len(found), "times")
"""


def test_classes_of_the_main_script_reach_policies_in_other_processes(tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=80, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("the same 4 times\n", "", 0)
