"""What worlds in other processes say reaches the caller once, with their slot."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

import stretto
from tests.faults.worlds import Schedule, Scheduled, Talker
from tests.worlds import Drift

pytestmark = pytest.mark.timeout(60)

ISOLATED = {"backend": "process", "workers": 2, "isolate": True}


def listen(envs_and_steps: Any, capfd: Any, caplog: Any) -> list[str]:
    """Return all that a function made worlds say, sorted."""
    with caplog.at_level(logging.WARNING), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        envs_and_steps()
    out, err = capfd.readouterr()
    logged = [record.getMessage() for record in caplog.records if record.name == "tests.talker"]
    caplog.clear()
    return sorted([*out.splitlines(), *err.splitlines(), *logged, *(str(one.message) for one in warned)])


def test_it_says_everything_once_with_the_slot(capfd, caplog):
    def go() -> None:
        with stretto.make_vec(Talker, 2, **ISOLATED) as envs:
            envs.reset(seed=0)
            for _ in range(3):
                envs.step(np.zeros(2, int))

    kinds = ("out", "err", "log", "warn")
    what = ("built", "step 1", "step 2", "step 3")
    said = [(slot, f"{kind}: {one}") for slot in (0, 1) for kind in kinds for one in what]
    # A filter for warnings looks at how their message begins.
    wanted = [f"{one} [slot {slot}]" if one.startswith("warn") else f"[slot {slot}] {one}" for slot, one in said]
    assert listen(go, capfd, caplog) == sorted(wanted)


def test_a_worker_that_is_replaced_says_nothing_twice(capfd, caplog, tmp_path):
    class Doomed(Scheduled):
        """Speaks, then dies in the same step; the step is done again, and is heard once."""

        def _at(self, moment: str) -> None:
            print(f"at {moment}")
            super()._at(moment)

    (tmp_path / "passed").mkdir()

    def go() -> None:
        deaths = Schedule(tmp_path / "passed", ("step 2", "step 3", "build"))
        with stretto.make_vec(partial(Doomed, deaths, _die, 1000), 1, backend="process", isolate=True) as envs:
            envs.reset(seed=0)
            for _ in range(4):
                envs.step(np.zeros(1, int))
            assert envs.statistics().restarts == 3

    moments = ["build", "reset 1", "step 1", "step 2", "step 3", "step 4", "close"]
    assert listen(go, capfd, caplog) == sorted(f"[slot 0] at {moment}" for moment in moments)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_said_before_a_death_that_is_not_recovered_is_heard(capfd, caplog):
    class LastWords(Drift):
        def move(self, action: Any) -> Any:
            print("farewell")
            _die()

    def go() -> None:
        with stretto.make_vec(LastWords, 1, backend="process", isolate=True, on_crash="raise") as envs:
            envs.reset(seed=0)
            with pytest.raises(stretto.WorkerDied):
                envs.step(np.zeros(1, int))

    assert listen(go, capfd, caplog) == ["[slot 0] farewell"]


def test_lines_that_are_not_ended_are_heard_at_the_end(capfd, caplog):
    class Dots(Drift):
        def move(self, action: Any) -> Any:
            print(".", end="", flush=True)
            return super().move(action)

    def go() -> None:
        with stretto.make_vec(Dots, 1, backend="process", isolate=True) as envs:
            envs.reset(seed=0)
            for _ in range(5):
                envs.step(np.zeros(1, int))

    heard = listen(go, capfd, caplog)
    assert heard == ["[slot 0] ....."]


def test_lines_of_several_slots_stay_whole_although_they_are_written_in_turn(capfd, caplog):
    class Halves(Drift):
        """Begins a line in one step and ends it in the next; the last one it never ends."""

        def move(self, action: Any) -> Any:
            seed = self.np_random_seed
            print(f"begun by {seed}", end=" " if self.steps % 2 else f" and ended by {seed}\n", flush=True)
            return super().move(action)

    def go() -> None:
        with stretto.make_vec(partial(Halves, 1000), 4, **ISOLATED) as envs:
            envs.reset(seed=0)
            for _ in range(5):
                envs.step(np.zeros(4, int))

    whole = [f"[slot {slot}] begun by {slot} begun by {slot} and ended by {slot}" for slot in range(4)]
    last = [f"[slot {slot}] begun by {slot} " for slot in range(4)]
    assert listen(go, capfd, caplog) == sorted([*whole, *whole, *last])


def test_what_worlds_do_with_their_streams_works(capfd, caplog):
    class Handy(Drift):
        def move(self, action: Any) -> Any:
            subprocess.run([sys.executable, "-c", "print('from a program')"], stdout=sys.stdout, check=True)
            sys.stdout.buffer.write(b"as bytes\n")
            sys.stdout.buffer.flush()
            assert not sys.stdout.isatty()
            assert sys.stdout.encoding.lower() == "utf-8"
            print("x" * 5000)
            return super().move(action)

    def go() -> None:
        with stretto.make_vec(Handy, 1, backend="process", isolate=True) as envs:
            envs.reset(seed=0)
            envs.step(np.zeros(1, int))

    assert listen(go, capfd, caplog) == ["[slot 0] " + "x" * 5000, "as bytes", "from a program"]


def test_a_log_record_keeps_what_it_can_and_its_level_counts(caplog):
    class Logger(Drift):
        def move(self, action: Any) -> Any:
            logger = logging.getLogger("tests.talker")
            logger.info("too quiet")
            logging.getLogger("tests.chatty").debug("heard")
            try:
                raise KeyError("inner")
            except KeyError:
                logger.exception("it %s", "failed", extra={"number": 5, "lock": threading.Lock()})
            return super().move(action)

    logging.getLogger("tests.chatty").setLevel(logging.DEBUG)
    with (
        caplog.at_level(logging.WARNING),
        stretto.make_vec(Logger, 1, backend="process", isolate=True) as envs,
    ):
        caplog.handler.setLevel(logging.DEBUG)
        envs.reset(seed=0)
        envs.step(np.zeros(1, int))
    logging.getLogger("tests.chatty").setLevel(logging.NOTSET)
    assert [record.getMessage() for record in caplog.records] == ["[slot 0] heard", "[slot 0] it failed"]
    record = caplog.records[-1]
    assert (record.slot, record.number, record.levelname) == (0, 5, "ERROR")
    assert "_thread.lock" in record.lock
    assert "KeyError: 'inner'" in record.exc_text


def test_a_warning_is_an_error_where_the_caller_says_so():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs = stretto.make_vec(Talker, 2, **ISOLATED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs.reset(seed=0)
    with pytest.raises(UserWarning, match=r"warn: step 1 \[slot 0\]"):
        envs.step(np.zeros(2, int))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs.reset(seed=0)
        envs.step(np.zeros(2, int))
        envs.close()


def test_a_world_that_warns_with_a_category_of_its_own_is_understood():
    class Own(UserWarning):
        pass

    class Warner(Drift):
        def move(self, action: Any) -> Any:
            warnings.warn("mine", Own, stacklevel=1)
            return super().move(action)

    with stretto.make_vec(Warner, 1, backend="process", isolate=True) as envs:
        envs.reset(seed=0)
        with pytest.warns(Own, match=r"mine \[slot 0\]"):
            envs.step(np.zeros(1, int))
