"""Infos of numbers cross processes in shared memory, and nobody can tell."""

from __future__ import annotations

import threading

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import stretto
from stretto.envs.arrays import INFO_BYTES
from stretto.envs.info_buffer import InfoBuffer
from stretto.envs.infos import Table, merge, pack
from stretto.errors import InvalidOutput
from stretto.testing import check_same
from stretto.workers.control import MAIL
from tests.worlds import CountTo

KEYS = {
    "a": st.floats(width=32),
    "b": st.integers(-(2**60), 2**60),
    "c": st.booleans(),
    "d": st.floats(width=32).map(np.float32),
    "e": st.integers(0, 200).map(np.uint8),
    "f": st.lists(st.floats(width=32), min_size=2, max_size=2).map(np.array),
}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional=KEYS), min_size=3, max_size=6))
def test_what_is_laid_down_is_what_is_found(infos):
    span = range(10, 10 + len(infos))
    entries = [(slot, info) for slot, info in zip(span, infos, strict=True) if info]
    table = pack(entries, span)
    assume(isinstance(table, Table))  # about every second time
    room = np.zeros((len(infos), INFO_BYTES), np.uint8)
    worker, caller = InfoBuffer(10, room), InfoBuffer(10, room)
    sent = worker.put(table, known=0)
    assert isinstance(sent, Table)  # its kind is new
    known = caller.learn_from(sent, known=0)
    note = worker.put(table, known)
    assert isinstance(note, int)
    found = caller.table(note)
    check_same(merge([found], 20), merge([table], 20), "what was found and what was laid down")
    check_same(found.entries(), entries, "the entries found and those laid down")


def test_what_does_not_fit_is_sent():
    board = InfoBuffer(0, np.zeros((2, INFO_BYTES), np.uint8))
    large = pack([(slot, {"a": np.zeros(100)}) for slot in range(2)])
    assert board.put(large, known=0) is large
    assert board.put(large, known=0) is large


def test_a_kind_is_sent_until_the_caller_knows_it():
    board = InfoBuffer(0, np.zeros((1, INFO_BYTES), np.uint8))
    table = pack([(0, {"a": 1.0})])
    assert [board.put(table, known=0).number for request in (1, 2, 3)] == [1, 1, 1]
    other = pack([(0, {"b": 1.0})])
    known = board.learn_from(board.put(other, known=0), known=0)
    assert isinstance(board.put(other, known), int)
    assert isinstance(board.put(table, known), Table)


def test_there_may_be_more_kinds_than_numbers():
    board = InfoBuffer(0, np.zeros((1, INFO_BYTES), np.uint8))
    known = 0
    for repeated in (False, True):
        for number in range(150):
            table = pack([(0, {f"key {number}": 1.0})])
            laid = board.put(table, known)
            assert isinstance(laid, int) == (repeated and number < 60)
            if not isinstance(laid, int):
                known = board.learn_from(laid, known)


class Talks(CountTo):
    """Says something else from step to step, and other things when it is reset."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"began": True, "b": 0}

    def move(self, action):
        step = self.steps
        infos = [
            {},
            {"a": step / 3},
            {"a": step / 3, "b": step, "c": np.float32(step)},
            {"v": np.arange(3) * step, "b": step},
            {"a": step / 3, "text": "as it is"},
            {f"key {step}": step},
            {"large": np.full(60, step, np.float64)},
        ]
        return *super().move(action)[:4], infos[(step * 5 + self.limit) % len(infos)]


class Steady(CountTo):
    """Says two numbers in every step, and one of them when it is reset."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"steps": 0}

    def move(self, action):
        return *super().move(action)[:4], {"steps": self.steps, "half": self.steps / 2}


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", [Talks, Steady])
def test_infos_are_equal_to_gymnasiums_whatever_worlds_say(kind, mode):
    makers = [lambda limit=limit: kind(limit) for limit in (5, 9, 13, 40, 7, 11)]
    plain = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    with stretto.make_vec(makers, 6, backend="process", workers=3, autoreset_mode=mode, isolate=True) as envs:
        for vector in (envs, plain):
            vector.reset(seed=0)
        for _ in range(120):
            ours, theirs = envs.step(np.ones(6, int)), plain.step(np.ones(6, int))
            check_same(ours[4], theirs[4], "ours and Gymnasium's")
            over = ours.terminations | ours.truncations
            if mode is AutoresetMode.DISABLED and over.any():
                for vector in (envs, plain):
                    vector.reset(options={"reset_mask": over})


def test_infos_of_a_step_that_were_kept_do_not_change():
    with stretto.make_vec(Steady, 4, backend="process", workers=2, env_kwargs={"limit": 100}, copy=False) as envs:
        envs.reset(seed=0)
        kept = [envs.step(np.zeros(4, int))[4] for _ in range(6)]
        assert [info["steps"].tolist() for info in kept] == [[step] * 4 for step in range(1, 7)]


def test_once_their_kinds_are_known_infos_need_no_mail():
    with stretto.make_vec(Steady, 8, backend="process", workers=2, env_kwargs={"limit": 7}, isolate=True) as envs:
        envs.reset(seed=0)
        for _ in range(60):
            envs.step(np.zeros(8, int))
        words = [worker.words for worker in envs._engine.supervisor.remote]
        before = [int(w[MAIL]) for w in words]
        for _ in range(30):
            assert envs.step(np.zeros(8, int)).infos["_steps"].all()
        # Points to restore from are sent, too, but not more than one a slot and second.
        assert max(int(w[MAIL]) - sent for w, sent in zip(words, before, strict=True)) < 10


class Anything(gymnasium.spaces.Space):
    """A space of a kind that nobody knows."""

    def __init__(self):
        super().__init__((), None)

    def contains(self, x):
        return True


class Slips(Steady):
    """Observes, in the steps that it is told, something that cannot be pickled."""

    def __init__(self, limit, slips):
        super().__init__(limit)
        self.slips = slips
        self.observation_space = gymnasium.spaces.Dict({"n": gymnasium.spaces.Discrete(1000), "x": Anything()})
        self.action_space = gymnasium.spaces.Discrete(4)

    def see(self):
        bad = self.steps in self.slips
        self.slips = [step for step in self.slips if step != self.steps]
        return {"n": self.steps, "x": threading.Lock() if bad else "fine"}


@pytest.mark.parametrize("slips", [[1], [5], [1, 4]])
def test_infos_of_a_step_that_failed_otherwise_hide_nothing(slips):
    with stretto.make_vec(
        Slips, 2, backend="process", workers=2, env_kwargs={"limit": 50, "slips": slips}, isolate=True
    ) as envs:
        for _ in slips:
            envs.reset(seed=0)
            with pytest.raises(InvalidOutput, match="must be picklable"):
                for _ in range(10):
                    envs.step(np.zeros(2, int))
        envs.reset(seed=0)
        seen = [envs.step(np.zeros(2, int)).infos["steps"].tolist() for _ in range(5)]
        assert seen == [[step, step] for step in range(1, 6)]


@pytest.mark.parametrize("infos", [{True: 1.0}, {1: 1.0}, {"t": np.timedelta64(3, "s")}])
def test_unusual_keys_and_numbers_are_no_table(infos):
    assert pack([(0, infos), (1, infos)]) == [(0, infos), (1, infos)]
