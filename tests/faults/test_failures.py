"""A world that raises: the same on every backend, with where it was, and nothing is tried again."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import sys
import traceback
from functools import partial
from typing import Any

import numpy as np
import pytest

import stretto
from tests.backends import OPTIONS, every_backend
from tests.worlds import CannotBePickled, Drift, Raiser, TakesOtherArguments

pytestmark = pytest.mark.timeout(60)

crossing = pytest.mark.parametrize("name", ["process-isolated", "process-message"])


class Told(Exception):
    """An ordinary exception with arguments of its own."""

    def __init__(self, code: int, words: str = "") -> None:
        super().__init__(code, words)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Allows nobody to add a note to it."""

    words: str = "frozen"


class ReadableOnlyThere(Exception):
    """Can be unpickled by whoever pickled it, and by nobody else."""

    def __reduce__(self) -> Any:
        import os

        return (_raise_elsewhere, (os.getpid(),))


def _raise_elsewhere(pid: int) -> Any:
    import os

    if pid != os.getpid():
        raise pickle.UnpicklingError("only there")
    return ReadableOnlyThere()


def raisers(at_step: int, exception: Any) -> list[Any]:
    """Four worlds of which the one in slot 1 (in slot 3 for the caller's share) raises."""
    return [Drift, partial(Raiser, at_step, exception), Drift, Drift]


def notes(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@every_backend
def test_at_construction_the_original_type_arrives_with_place_and_traceback(options):
    with pytest.raises(ValueError, match="the world's own words") as caught:
        stretto.make_vec(raisers(-1, ValueError), 4, **options)
    assert "while building (slot 1, worker 0)" in notes(caught.value)
    _has_traceback(caught.value)


@every_backend
@pytest.mark.parametrize(("at_step", "doing"), [(0, "resetting"), (3, "stepping")])
def test_at_reset_and_step_too_and_it_can_be_reset_and_closed(options, at_step, doing):
    with stretto.make_vec(raisers(at_step, ValueError), 4, **options) as envs:
        for _ in range(2):
            with pytest.raises(ValueError, match="the world's own words") as caught:
                _play(envs)
            told = notes(caught.value)
            assert f"while {doing} (slot 1, worker 0, episode 0" in told
            assert "seed 12)" in told
            assert ("step 3" in told) == (at_step == 3)
            assert caught.value.place.slot == 1
            _has_traceback(caught.value)
            with pytest.raises(stretto.ResetNeeded):
                envs.step(np.zeros(4, int))
        assert envs.statistics().restarts == 0
        if at_step == 3:
            envs.reset(seed=11)
            assert envs.get_attr("steps") == (0, 0, 0, 0)


def _play(envs: Any) -> None:
    envs.reset(seed=11)
    for _ in range(3):
        envs.step(np.zeros(4, int))


def _has_traceback(error: BaseException) -> None:
    assert "in _raise\n" in "".join(traceback.format_exception(error))


@every_backend
def test_the_traceback_of_a_world_is_printed_once(options):
    with stretto.make_vec(raisers(3, ValueError), 4, **options) as envs:
        with pytest.raises(ValueError, match="the world's own words") as caught:
            _play(envs)
        printed = "".join(traceback.format_exception(caught.value))
        assert printed.count("in _raise\n") == 1
        assert notes(caught.value).count("while stepping") == 1


@every_backend
def test_a_call_and_a_mapped_function_that_raise_leave_the_worlds_as_they_are(options):
    def fail(env: Any) -> None:
        raise KeyError(env.unwrapped.steps)

    with stretto.make_vec(partial(Drift, 1000), 4, **options) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(4, int))
        with pytest.raises(KeyError) as caught:
            envs.map(fail)
        assert "while running a mapped function (slot 0" in notes(caught.value)
        with pytest.raises(AttributeError) as unknown:
            envs.call("no_such_thing")
        assert "while calling 'no_such_thing'" in notes(unknown.value)
        with pytest.raises(TypeError):
            envs.call("see", 1, 2, 3)
        envs.step(np.zeros(4, int))
        assert envs.get_attr("steps") == (2, 2, 2, 2)


@every_backend
def test_at_close_all_others_are_closed_first(options, tmp_path):
    class Closes(Drift):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def close(self) -> None:
            (tmp_path / self.name).touch()
            if self.name in "12":
                raise ValueError(f"{self.name} does not close")

    envs = stretto.make_vec([partial(Closes, str(i)) for i in range(4)], 4, **options)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="1 does not close") as caught:
        envs.close()
    assert "while closing (slot 1" in notes(caught.value)
    assert len(list(tmp_path.iterdir())) == 4
    envs.close()


@every_backend
@pytest.mark.parametrize(
    "exception", [CannotBePickled, partial(TakesOtherArguments, "left"), ReadableOnlyThere, Frozen]
)
def test_what_cannot_travel_arrives_as_text(options, exception):
    makers = raisers(2, exception)
    with stretto.make_vec(makers, 4, **options) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(4, int))
        with pytest.raises(Exception) as caught:  # noqa: PT011  which one depends on the backend
            envs.step(np.zeros(4, int))
        name = exception.func.__name__ if isinstance(exception, partial) else exception.__name__
        travels = options["backend"] != "process" and name != "Frozen"
        assert type(caught.value).__name__ == (name if travels else "WorldFailed")
        if not travels:
            assert name in str(caught.value)
            assert "in _raise" in caught.value.remote_traceback
            assert caught.value.place.slot == 1
        envs.reset(seed=0)


@every_backend
@pytest.mark.parametrize("exception", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_what_would_end_a_program_arrives_as_text_and_ends_nothing(options, exception):
    if exception is KeyboardInterrupt and options["backend"] == "serial":
        pytest.skip("in the caller's own thread this is Ctrl-C")
    with stretto.make_vec(raisers(2, exception), 4, **options) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(4, int))
        with pytest.raises(stretto.WorldFailed, match=exception.__name__) as caught:
            envs.step(np.zeros(4, int))
        assert caught.value.place.slot == 1
        envs.reset(seed=0)
        assert envs.statistics().restarts == 0


@every_backend
def test_sys_exit_in_a_world_is_a_failure_of_the_world(options):
    def leave() -> Any:
        sys.exit(0)

    with stretto.make_vec(raisers(1, leave), 4, **options) as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.WorldFailed, match="SystemExit: 0"):
            envs.step(np.zeros(4, int))


@crossing
def test_an_exception_of_the_users_own_main_module_keeps_its_type(name):
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("class Mine(Exception):\n    def __init__(self, code): super().__init__(code); self.code = code", scope)
    mine = scope["Mine"]
    with stretto.make_vec(raisers(1, partial(mine, 5)), 4, **OPTIONS[name]) as envs:
        envs.reset(seed=0)
        with pytest.raises(mine) as caught:
            envs.step(np.zeros(4, int))
        assert caught.value.code == 5


@crossing
def test_the_first_failure_in_the_order_of_the_slots_is_told(name):
    makers = [Drift, Drift, partial(Raiser, 1, KeyError), partial(Raiser, 1, ValueError)]
    with stretto.make_vec(makers, 4, **{**OPTIONS[name], "workers": 4}) as envs:
        envs.reset(seed=0)
        with pytest.raises(KeyError):
            envs.step(np.zeros(4, int))
        envs.reset(seed=0)


@every_backend
def test_under_recv_too(options):
    with stretto.make_vec(raisers(1, ValueError), 4, **options) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(4, int))
        with pytest.raises(ValueError, match="own words"):
            envs.recv()
        envs.reset(seed=0)
        envs.send(np.zeros(2, int), [0, 3])
        assert sorted(envs.recv().ids) == [0, 3]


@crossing
def test_a_factory_that_cannot_be_imported_there_says_so(name):
    class Elsewhere:
        def __call__(self) -> Any:
            return Drift()

        def __reduce__(self) -> Any:
            return (_import_missing, ())

    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        stretto.make_vec(Elsewhere(), 4, **OPTIONS[name])


def _import_missing() -> Any:
    import no_such_module

    return no_such_module


@crossing
def test_an_answer_that_cannot_be_read_here_is_a_failure_of_that_request_alone(name):
    def answer(env: Any) -> Any:
        return ReadableOnlyThere("an answer")

    with stretto.make_vec(Drift, 4, **OPTIONS[name]) as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.WorldFailed, match="only there"):
            envs.map(answer)
        envs.step(np.zeros(4, int))


@crossing
def test_a_message_that_cannot_be_sent_is_the_callers_own_failure(name):
    import threading

    with stretto.make_vec(Drift, 4, **OPTIONS[name]) as envs:
        envs.reset(seed=0)
        lock = threading.Lock()
        with pytest.raises(TypeError, match="lock"):
            envs.map(lambda env: lock)
        with pytest.raises(TypeError, match="lock"):
            envs.set_attr("pace", lock)
        envs.step(np.zeros(4, int))
