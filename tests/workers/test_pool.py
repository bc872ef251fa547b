"""A pool says who has answered, who died and who hangs; and it never waits for ever."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stretto.errors import WorkerDied, WorldHung
from stretto.workers.backends import PROCESS, SERIAL, THREAD
from stretto.workers.base import Port, Start
from stretto.workers.control import BEAT
from stretto.workers.pool import Pool

every_backend = pytest.mark.parametrize("backend", [SERIAL, THREAD, PROCESS], ids=str)


@dataclass(frozen=True)
class Do:
    what: str
    value: Any = None


class Servant:
    def __init__(self, port: Port, broken: bool) -> None:
        if broken:
            raise ValueError("this servant cannot be made")
        self.port, self.sum = port, 0

    def handle(self, message):
        match message:
            case Start():
                return None
            case Do("add", value):
                self.sum += value
                return self.sum
            case Do("return", value):
                return value
            case Do("raise"):
                raise KeyError("no such thing")
            case Do("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            case Do("hang"):
                time.sleep(3600)
            case Do("work", beats):
                for _ in range(beats):
                    time.sleep(0.05)
                    self.port.words[BEAT] += 1
                return "done"
        return None

    def signal(self, code):
        raise AssertionError

    def close(self):
        pass


@dataclass(frozen=True)
class Servants:
    broken: bool = False

    def __call__(self, port: Port) -> Servant:
        return Servant(port, self.broken)


def gather(pool, count):
    answers = []
    while len(answers) < count:
        answers += pool.wait()
    return sorted(answers, key=lambda answer: answer.worker)


@every_backend
def test_each_has_a_state_of_its_own_and_is_asked_as_often_as_one_likes(backend):
    with Pool(backend, [Servants()] * 3) as pool:
        for turn in range(1, 4):
            assert pool.idle == [0, 1, 2]
            for index in range(3):
                pool.give(index, Do("add", index))
            assert pool.idle == []
            assert [answer.value for answer in gather(pool, 3)] == [0, turn, 2 * turn]


@every_backend
def test_what_is_raised_arrives_and_the_worker_goes_on(backend):
    with Pool(backend, [Servants()]) as pool:
        pool.give(0, Do("add", 1))
        gather(pool, 1)
        pool.give(0, Do("raise"))
        (answer,) = gather(pool, 1)
        assert isinstance(answer.error, KeyError)
        assert not answer.lost
        pool.give(0, Do("add", 1))
        assert gather(pool, 1)[0].value == 2


@every_backend
def test_a_service_that_cannot_be_made_says_why_each_time(backend):
    with Pool(backend, [Servants(broken=True)]) as pool:
        for _ in range(2):
            pool.give(0, Do("add", 1))
            (answer,) = gather(pool, 1)
            assert isinstance(answer.error, ValueError)


def test_one_that_dies_is_told_and_its_place_gets_a_new_one():
    with Pool(PROCESS, [Servants()] * 2) as pool:
        pool.give(0, Do("die"))
        pool.give(1, Do("add", 5))
        died, well = gather(pool, 2)
        assert died.lost
        assert isinstance(died.error, WorkerDied)
        assert "SIGKILL" in str(died.error)
        assert well.value == 5
        pool.give(0, Do("add", 1))
        pool.give(1, Do("add", 1))
        assert [answer.value for answer in gather(pool, 2)] == [1, 6]


def test_one_that_hangs_is_ended_and_its_stack_is_in_the_error():
    with Pool(PROCESS, [Servants()], start_seconds=0.0) as pool:
        pool.give(0, Do("add", 1))
        gather(pool, 1)
        pool.give(0, Do("hang"), limit_seconds=0.3)
        (answer,) = gather(pool, 1)
        assert isinstance(answer.error, WorldHung)
        assert "in handle" in str(answer.error)
        assert pool.pids == []


def test_one_that_shows_signs_of_life_may_take_as_long_as_it_likes():
    with Pool(PROCESS, [Servants()]) as pool:
        pool.give(0, Do("add", 1))
        gather(pool, 1)
        pool.give(0, Do("work", 20), limit_seconds=0.5)
        assert gather(pool, 1)[0].value == "done"


def test_waiting_ends_when_the_time_is_over():
    with Pool(PROCESS, [Servants()]) as pool:
        pool.give(0, Do("work", 100))
        assert pool.wait(0.05) == []
        pool.kill(0)
        assert pool.idle == [0]


def test_closing_ends_who_is_busy():
    pool = Pool(PROCESS, [Servants()] * 2)
    pool.give(0, Do("hang"))
    pool.give(1, Do("add", 1))
    gather(pool, 1)
    pids = pool.pids
    pool.close()
    pool.close()
    assert all(not Path(f"/proc/{pid}").exists() for pid in pids)


# ---- messages through shared memory ----


@pytest.fixture
def boxed():
    with Pool(PROCESS, [Servants(), Servants()], box_bytes=4096) as pool:
        yield pool


def give(pool, *what, worker=0):
    pool.give(worker, Do(*what), by_value=False)
    (answer,) = gather(pool, 1)
    return answer


@pytest.mark.parametrize("size", [0, 1, 3_000, 4_096, 5_000_000])
def test_a_message_and_its_answer_of_any_size_arrive(boxed, size):
    for fill in (b"a", b"b"):
        assert give(boxed, "return", fill * size).value == fill * size


def test_messages_by_value_and_plain_ones_are_served_in_turn(boxed):
    assert give(boxed, "add", 1).value == 1
    boxed.give(0, Do("add", 2))
    assert gather(boxed, 1)[0].value == 3
    assert give(boxed, "add", 3).value == 6
    assert give(boxed, "add", 3, worker=1).value == 3


def test_one_that_raises_after_it_has_answered_does_not_give_the_old_answer(boxed):
    assert give(boxed, "add", 1).value == 1
    assert isinstance(give(boxed, "raise").error, KeyError)
    assert give(boxed, "add", 1).value == 2


def test_one_that_dies_is_replaced_and_takes_messages_as_before(boxed):
    assert give(boxed, "add", 1).value == 1
    answer = give(boxed, "die")
    assert answer.lost
    assert isinstance(answer.error, WorkerDied)
    assert give(boxed, "add", 1).value == 1


def test_what_only_the_one_before_understands_is_not_given_to_a_new_one(boxed):
    give(boxed, "add", 1)
    os.kill(boxed.pids[0], signal.SIGKILL)
    boxed.give(0, Do("add", 1), by_value=False, fresh=False)
    (answer,) = gather(boxed, 1)
    assert answer.lost
    assert give(boxed, "add", 1).value == 1


class Unreadable:
    def __reduce__(self):
        return _refuse_here, (os.getpid(),)


def _refuse_here(pid: int) -> Unreadable:
    if os.getpid() != pid:
        raise ValueError("not in this process")
    return Unreadable()


def _make_unreadable() -> Unreadable:
    return Unreadable()


class Maker:
    """Is pickled as a call that makes something which only the maker's process can read."""

    def __reduce__(self):
        return _make_unreadable, ()


def test_what_cannot_be_read_is_told_on_either_side(boxed):
    assert "not in this process" in str(give(boxed, "return", Unreadable()).error)
    assert "not in this process" in str(give(boxed, "return", Maker()).error)
    assert give(boxed, "add", 1).value == 1
