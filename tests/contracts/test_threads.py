"""A vector environment is used by one thread at a time; a second one is told so, and harms nothing."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

import stretto
from tests.backends import every_backend
from tests.worlds import CountTo, Crowd

SECONDS = 20.0


def wait_for(file: Path) -> None:
    """Wait until another thread or process has made a file; each of them can see it."""
    deadline = time.monotonic() + SECONDS
    while not file.exists():
        assert time.monotonic() < deadline, f"nobody has made {file}"
        time.sleep(0.001)


class Gate:
    """Holds whoever comes by until it is opened."""

    def __init__(self, folder: Path) -> None:
        self.reached, self.opened = folder / "reached", folder / "opened"

    def pass_by(self) -> None:
        self.reached.touch()
        wait_for(self.opened)


class HeldUp(CountTo):
    def __init__(self, gate: Gate) -> None:
        super().__init__(100)
        self.gate = gate

    def move(self, action):
        self.gate.pass_by()
        return super().move(action)


class HeldUpCrowd(Crowd):
    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def step(self, actions):
        self.gate.pass_by()
        return super().step(actions)


@every_backend
def test_a_second_thread_is_told_so_and_the_first_gets_its_step(options, tmp_path):
    gate, results = Gate(tmp_path), []
    with stretto.make_vec(lambda: HeldUp(gate), 2, **options) as envs:
        envs.reset(seed=0)
        first = threading.Thread(target=lambda: results.append(envs.step([1, 2])))
        first.start()
        wait_for(gate.reached)
        try:
            for call in (
                lambda: envs.step([3, 3]),
                lambda: envs.send([3, 3]),
                envs.recv,
                lambda: envs.reset(seed=1),
                lambda: envs.get_attr("steps"),
                lambda: envs.set_attr("limit", 1),
                lambda: envs.map(str),
            ):
                with pytest.raises(
                    stretto.UsageError, match="one thread at a time, and another thread is in the middle"
                ):
                    call()
        finally:
            gate.opened.touch()
            first.join()
        assert results[0].observations.tolist() == [[1, 1], [1, 2]]
        assert envs.step([2, 1]).observations.tolist() == [[2, 2], [2, 1]]


@every_backend
def test_with_several_agents_too(options, tmp_path):
    gate, results = Gate(tmp_path), []
    with stretto.make_vec(lambda: HeldUpCrowd(gate), 2, **options) as envs:
        envs.reset(seed=0)
        actions = {agent: np.zeros((2, *envs.single_action_space(agent).shape), int) for agent in envs.possible_agents}
        first = threading.Thread(target=lambda: results.append(envs.step(actions)))
        first.start()
        wait_for(gate.reached)
        try:
            for call in (lambda: envs.step(actions), lambda: envs.send(actions), envs.recv, envs.reset, envs.state):
                with pytest.raises(stretto.UsageError, match="one thread at a time"):
                    call()
        finally:
            gate.opened.touch()
            first.join()
        assert len(results) == 1
        envs.step(actions)


def test_threads_that_take_turns_are_no_concern():
    with stretto.make_vec(CountTo, 2, backend="serial") as envs:
        envs.reset(seed=0)
        for _ in range(3):
            one = threading.Thread(target=envs.step, args=([1, 1],))
            one.start()
            one.join()
        assert envs.get_attr("steps") == (3, 3)


def test_after_a_call_that_fails_another_thread_may_go_on():
    with stretto.make_vec(CountTo, 2, backend="serial") as envs:
        envs.reset(seed=0)

        def fail() -> None:
            with pytest.raises(stretto.InvalidAction):
                envs.step([9, 9])

        one = threading.Thread(target=fail)
        one.start()
        one.join()
        envs.step([1, 1])


class Curious(CountTo):
    """Asks something of the vector environment that it is in, in the middle of a step."""

    ask = staticmethod(lambda: None)

    def move(self, action):
        Curious.ask()
        return super().move(action)


def test_a_thread_that_comes_again_while_it_is_inside_lets_nobody_else_in(monkeypatch):
    refused = []

    def step_too() -> None:
        with pytest.raises(stretto.UsageError, match="one thread at a time"):
            envs.step([1, 1])
        refused.append(True)

    def ask() -> None:
        with pytest.raises(stretto.ResetNeeded):
            envs.get_attr("steps")
        with pytest.raises(stretto.ResetNeeded):
            envs.step([1, 1])
        other = threading.Thread(target=step_too)
        other.start()
        other.join()

    with stretto.make_vec(Curious, 2, backend="serial") as envs:
        envs.reset(seed=0)
        monkeypatch.setattr(Curious, "ask", staticmethod(ask))
        envs.step([1, 1])
        assert refused == [True, True]
        monkeypatch.undo()
        elsewhere = threading.Thread(target=envs.reset)
        elsewhere.start()
        elsewhere.join()
        assert envs.get_attr("steps") == (0, 0)
