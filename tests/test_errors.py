"""What is told of an error is what the user can see: their code, and none of ours that led there."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import stretto
from stretto.core import MultiAgentPolicy
from stretto.errors import users_traceback

OURS = "def call(function):\n    function()\n"
THEIRS = "def act():\n    fail()\n\n\ndef fail():\n    raise ValueError('no way out')\n"


def module(source: str, name: str, **names):
    exec(compile(source, f"{name}.py", "exec"), names)
    return names


def traceback_of(call, function) -> str:
    with pytest.raises(ValueError, match="no way out") as caught:
        call(function)
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # this test's own frame
    return users_traceback(caught.value)


def test_a_module_that_calls_users_code_and_says_so_is_left_out():
    theirs = module(THEIRS, "theirs")
    marked, plain = module(OURS, "ours", __calls_user_code__=True), module(OURS, "ours")
    assert "ours.py" in traceback_of(plain["call"], theirs["act"])
    told = traceback_of(marked["call"], theirs["act"])
    assert "ours.py" not in told
    assert told.count("theirs.py") == 2


def test_only_what_led_there_is_left_out_and_not_what_the_users_code_called_in_turn():
    theirs = module(THEIRS, "theirs")
    marked = module(OURS, "ours", __calls_user_code__=True)

    def also_theirs(act):
        marked["call"](act)

    assert "ours.py" in traceback_of(also_theirs, theirs["act"])


def test_code_that_catches_gymnasiums_errors_catches_ours():
    envs = stretto.make_vec(Broken, 1, backend="serial")
    with pytest.raises(gymnasium.error.ResetNeeded, match="not reset yet"):
        envs.step(np.zeros(1, int))
    envs.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="is closed"):
        envs.reset()


class Broken(gymnasium.Env):
    """A world that raises, or a policy: where it is told to."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    where = ""

    def fail(self, here):
        if here == self.where:
            raise ValueError("no way out")

    def reset(self, *, seed=None, options=None):
        self.fail("reset")
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.fail("step")
        return np.zeros(1, np.float32), 0.0, False, False, {}


class BrokenPolicy(MultiAgentPolicy):
    """Each of the agents is this policy itself."""

    where = ""
    fail = Broken.fail

    def agent_policy(self, agent):
        self.fail("agent_policy")
        return self

    def reset(self):
        self.fail("reset")

    def step(self, observation):
        self.fail("step")
        return 0


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("who", "where"),
    [
        *((Broken, where) for where in ("reset", "step")),
        *((BrokenPolicy, where) for where in ("agent_policy", "reset", "step")),
    ],
)
def test_what_an_evaluation_tells_of_an_error_begins_with_the_users_code(who, where, traced, monkeypatch, tmp_path):
    monkeypatch.setattr(who, "where", where)
    trace = tmp_path / "trace.json" if traced else False
    report = stretto.evaluate(Broken, BrokenPolicy, episodes=1, steps=2, jobs=0, trace=trace)
    lines = [line for line in report.records[0].failure.traceback.splitlines() if line.startswith("  File")]
    assert __file__ in lines[0]
    assert lines[0].endswith(f"in {where}")
