"""A supervisor says who has answered, who died and who hangs; and it never waits for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from stretto.errors import WorkerDied, WorldHung
from stretto.workers.backends import MESSAGE_PROCESS, PROCESS, SERIAL, THREAD
from stretto.workers.base import Start
from stretto.workers.requests import sender, signaller
from stretto.workers.supervisor import BUSY_SECONDS, Supervisor
from tests.workers.fake import (
    AFTER,
    BEFORE,
    KILLED,
    UNCOUNTED,
    UNSENT,
    Death,
    Delay,
    Hang,
    Script,
    die,
    fake_backend,
    hang,
    kill,
)
from tests.workers.servant import Do, Servant, refuse

BACKENDS = {
    "serial": SERIAL,
    "thread": THREAD,
    "process": PROCESS,
    "message": MESSAGE_PROCESS,
    "fake": fake_backend(),
    "fake-message": fake_backend(shares_memory=False),
}
every_backend = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
processes = pytest.mark.parametrize("backend", [PROCESS, MESSAGE_PROCESS], ids=["process", "message"])

FIRST = 2
"""The number of the first request: `Start` is number 1."""


@contextlib.contextmanager
def supervised(backend, count=1, factory=Servant, **options):
    """Give a supervisor with so many seats, and the seats."""
    with Supervisor(backend, **options) as supervisor:
        yield supervisor, [supervisor.add_seat(factory) for _ in range(count)]


def scripted(*faults, count=1, **options):
    """Give one whose workers are fakes that follow a script."""
    return supervised(fake_backend(Script(*faults)), count, **options)


def ask(supervisor, seat, what, value=None, limit_seconds=None, **options):
    return supervisor.ask(seat, sender(Do(what, value)), what, limit_seconds, **options)


def answers(supervisor, *requests):
    """Wait for requests and return their values."""
    supervisor.settle(requests)
    return [request.value for request in requests]


def add(supervisor, seat, value=1):
    return answers(supervisor, ask(supervisor, seat, "add", value))[0]


# ---- on every backend ----


@every_backend
def test_each_has_a_state_of_its_own_and_is_asked_as_often_as_one_likes(backend):
    with supervised(backend, 3) as (supervisor, seats):
        for turn in range(1, 4):
            requests = [ask(supervisor, seat, "add", seat.index) for seat in seats]
            assert answers(supervisor, *requests) == [0, turn, 2 * turn]


@every_backend
def test_requests_are_numbered_and_answered_in_order(backend):
    values = []
    with supervised(backend) as (supervisor, (seat,)):
        issues = [sender(Do("add", 10)), signaller(1), signaller(2), sender(Do("add", 20)), signaller(3)]
        requests = [supervisor.ask(seat, issue, "adding", None, values.append) for issue in issues]
        assert [request.number for request in requests] == list(range(FIRST, FIRST + 5))
        supervisor.wait(requests, 1)
        assert requests[0].finished
        assert answers(supervisor, *requests) == [10, 11, None, 33, 36]
    assert values == [10, 11, None, 33, 36]


@every_backend
def test_what_is_raised_arrives_and_the_worker_goes_on(backend):
    with supervised(backend) as (supervisor, (seat,)):
        assert add(supervisor, seat) == 1
        request = ask(supervisor, seat, "raise")
        with pytest.raises(KeyError, match="no such thing"):
            supervisor.settle([request])
        assert not request.lost
        assert add(supervisor, seat) == 2


@every_backend
def test_the_first_of_several_failures_is_raised_when_all_have_answered(backend):
    with supervised(backend, 2) as (supervisor, seats):
        requests = [
            ask(supervisor, seats[0], "add", 1),
            ask(supervisor, seats[0], "raise"),
            ask(supervisor, seats[1], "run", 0),  # which is no function
            ask(supervisor, seats[1], "add", 1),
        ]
        with pytest.raises(KeyError):
            supervisor.settle(requests)
        assert [type(request.error) for request in requests] == [type(None), KeyError, TypeError, type(None)]
        assert [request.value for request in requests] == [1, None, None, 1]


@every_backend
def test_a_service_that_cannot_be_made_says_why_each_time(backend):
    with supervised(backend, factory=refuse) as (supervisor, (seat,)):
        for _ in range(2):
            request = ask(supervisor, seat, "add", 1)
            supervisor.wait([request])
            assert isinstance(request.error, ValueError)
            assert not request.lost


@every_backend
def test_all_do_what_a_signal_says_and_tell_only_what_there_is_to_tell(backend):
    with supervised(backend, 3) as (supervisor, seats):
        for seat in seats:
            add(supervisor, seat, seat.index)
        assert supervisor.signal_all(2, "adding", None) in (None, [None] * 3)
        assert supervisor.signal_all(1, "adding", None) == [3, 4, 5]
        some = supervisor.tell(lambda seat: Do("add", 1) if seat.index != 1 else None, "adding", None)
        assert some == [4, 6]


@pytest.mark.parametrize("inline", [{0}, {1}, {2}, {0, 2}], ids=str)
def test_whichever_of_them_the_caller_is_all_do_what_a_signal_says(inline):
    with Supervisor(PROCESS, spin_seconds=1.0) as supervisor:
        seats = [supervisor.add_seat(Servant, inline=index in inline) for index in range(3)]
        for seat in seats:
            add(supervisor, seat, seat.index)
        for turn in range(1, 4):
            assert supervisor.signal_all(1, "adding", None) == [turn, turn + 1, turn + 2]


@every_backend
def test_it_may_be_closed_twice_and_with_requests_that_nobody_waits_for(backend):
    with supervised(backend, 2) as (supervisor, seats):
        ask(supervisor, seats[0], "add", 1)
        add(supervisor, seats[1])
        ask(supervisor, seats[1], "add", 1)
        assert supervisor.close() is None
        assert supervisor.close() is None
        assert supervisor.pids == []


# ---- deaths ----


@pytest.mark.parametrize("moment", [BEFORE, UNSENT, UNCOUNTED])
def test_one_that_dies_at_a_request_is_told_and_its_seat_gets_a_new_one(moment):
    with scripted(Death(nth=FIRST + 1, when=moment), count=2) as (supervisor, seats):
        add(supervisor, seats[0])
        requests = [ask(supervisor, seat, "add", 5) for seat in seats]
        supervisor.wait(requests)
        died, well = requests
        assert died.lost
        assert isinstance(died.error, WorkerDied)
        assert died.error.ended == KILLED
        assert died.error.place.doing == "add"
        assert well.value == 5
        assert [add(supervisor, seat) for seat in seats] == [1, 6]


def test_one_that_dies_after_its_answer_has_answered():
    with scripted(Death(nth=FIRST, when=AFTER), Delay(seat=1, nth=FIRST, seconds=5.0), count=2) as (supervisor, seats):
        requests = [ask(supervisor, seat, "add", 5) for seat in seats]
        assert answers(supervisor, *requests) == [5, 5]
        assert [add(supervisor, seat) for seat in seats] == [1, 6]


def test_all_that_was_asked_of_one_that_dies_is_lost_but_what_it_had_answered():
    with scripted(Death(nth=FIRST + 1)) as (supervisor, (seat,)):
        requests = [ask(supervisor, seat, "add", 1) for _ in range(4)]
        supervisor.wait(requests)
        assert [request.value for request in requests] == [1, None, None, None]
        assert [request.lost for request in requests] == [False, True, True, True]


def test_one_that_dies_while_it_is_idle_is_replaced_by_the_next_request():
    with scripted() as (supervisor, (seat,)):
        add(supervisor, seat)
        kill(*supervisor.pids)
        assert add(supervisor, seat) == 1


def test_what_only_the_one_before_understands_is_not_given_to_a_new_one():
    with scripted() as (supervisor, (seat,)):
        add(supervisor, seat)
        kill(*supervisor.pids)
        for _ in range(2):
            request = ask(supervisor, seat, "add", 1, fresh=False)
            assert request.finished
            assert request.lost
            assert isinstance(request.error, WorkerDied)
            assert supervisor.pids == []
        assert add(supervisor, seat) == 1
        assert answers(supervisor, ask(supervisor, seat, "add", 1, fresh=False)) == [2]


def test_an_answer_of_one_that_died_is_not_taken_for_one_of_the_next():
    with scripted(Death(nth=FIRST, when=UNCOUNTED)) as (supervisor, (seat,)):
        died = ask(supervisor, seat, "add", 5)
        supervisor.wait([died])
        assert died.lost
        silent = supervisor.ask(seat, signaller(2), "adding")  # has the same number, and says nothing
        assert silent.number == died.number
        assert answers(supervisor, silent) == [None]


@pytest.mark.parametrize("moment", [BEFORE, UNSENT, UNCOUNTED])
def test_one_that_dies_while_it_starts_is_told_to_who_asked_first(moment):
    with scripted(Death(kind=Start, when=moment)) as (supervisor, (seat,)):
        requests = [ask(supervisor, seat, "add", 1) for _ in range(2)]
        supervisor.wait(requests)
        assert all(request.lost for request in requests)
        assert requests[0].error.place.doing == "building"
        assert add(supervisor, seat) == 1


@processes
def test_a_process_that_dies_is_told_with_how_it_ended(backend):
    with supervised(backend, 2) as (supervisor, seats):
        add(supervisor, seats[0])
        died = ask(supervisor, seats[0], "run", _end)
        well = ask(supervisor, seats[1], "add", 5)
        supervisor.wait([died, well])
        assert died.lost
        assert isinstance(died.error, WorkerDied)
        assert "signal 9 (SIGKILL)" in str(died.error)
        assert well.value == 5
        os.kill(supervisor.pids[0], signal.SIGKILL)
        request = ask(supervisor, seats[1], "add", 1, fresh=False)
        supervisor.wait([request])
        assert request.lost
        assert [add(supervisor, seat) for seat in seats] == [1, 1]


@pytest.mark.parametrize(
    ("end", "ended"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGRTMIN + 1), f"it was killed by signal {signal.SIGRTMIN + 1} (unnamed)"),
        (lambda: os._exit(3), "it exited with code 3"),
    ],
)
def test_however_a_process_ends_it_is_told(end, ended):
    with supervised(PROCESS) as (supervisor, (seat,)):
        died = ask(supervisor, seat, "run", end)
        supervisor.wait([died])
        assert died.error.ended == ended


def test_a_process_that_may_have_got_half_of_a_message_is_ended(monkeypatch):
    with supervised(MESSAGE_PROCESS) as (supervisor, (seat,)):
        for ask_it in (lambda: seat.worker.trace(True), lambda: seat.worker.signal(2), lambda: seat.worker.post(b"")):
            add(supervisor, seat)
            monkeypatch.setattr(seat.worker._mail, "flush", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                ask_it()
            assert seat.worker._process.wait(10.0)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# ---- hangs and late answers ----


@pytest.mark.parametrize("moment", [BEFORE, UNSENT, UNCOUNTED])
def test_one_that_hangs_is_ended_at_its_limit_and_told_with_its_stack(moment):
    with scripted(Hang(nth=FIRST + 1, when=moment, stack="somewhere, in a loop"), count=2) as (supervisor, seats):
        clock = supervisor.backend.clock
        for seat in seats:
            add(supervisor, seat)
        began = clock.now()
        hung = ask(supervisor, seats[0], "add", 1, limit_seconds=30.0)
        well = ask(supervisor, seats[1], "add", 1, limit_seconds=30.0)
        supervisor.wait([hung, well], 1)
        assert well.finished
        assert clock.now() == began
        supervisor.wait([hung, well])
        assert 30.0 < clock.now() - began < 31.0
        assert hung.lost
        assert isinstance(hung.error, WorldHung)
        assert "no answer for 30 s while add (worker 0)" in str(hung.error)
        assert hung.error.stack == "somewhere, in a loop"
        assert len(supervisor.pids) == 1
        assert [add(supervisor, seat) for seat in seats] == [1, 3]


def test_each_of_several_requests_has_its_own_limit_from_the_answer_before():
    delays = [Delay(nth=FIRST + k, seconds=2.0) for k in range(3)]
    with scripted(*delays, Hang(nth=FIRST + 3)) as (supervisor, (seat,)):
        requests = [ask(supervisor, seat, "add", 1, limit_seconds=limit) for limit in (3.0, 3.0, 2.5, 1.0)]
        supervisor.wait(requests)
        assert [request.value for request in requests] == [1, 2, 3, None]
        assert 7.0 < supervisor.backend.clock.now() < 7.5


def test_one_that_starts_has_a_limit_of_its_own():
    with scripted(Delay(kind=Start, seconds=50.0), start_seconds=60.0) as (supervisor, (seat,)):
        assert answers(supervisor, ask(supervisor, seat, "add", 1, limit_seconds=1.0)) == [1]
    with scripted(Hang(kind=Start), start_seconds=60.0) as (supervisor, (seat,)):
        request = ask(supervisor, seat, "add", 1, limit_seconds=1.0)
        with pytest.raises(WorldHung, match="no answer for 60 s while building"):
            supervisor.settle([request])
        assert add(supervisor, seat) == 1


@pytest.mark.parametrize("signs", [{"beats": 3}, {"moves": 3}], ids=str)
def test_one_that_shows_signs_of_life_may_take_as_long_as_it_likes(signs):
    for seconds in (3.5, 4.5):  # with three signs on the way, a quarter of it is the longest silence
        with scripted(Delay(nth=FIRST, seconds=seconds, **signs)) as (supervisor, (seat,)):
            request = ask(supervisor, seat, "add", 1, limit_seconds=1.0)
            supervisor.wait([request])
            assert request.lost == (seconds > 4)


def test_one_without_a_limit_may_take_as_long_as_it_likes():
    with scripted(Delay(nth=FIRST, seconds=600.0)) as (supervisor, (seat,)):
        assert add(supervisor, seat) == 1
        assert supervisor.backend.clock.now() >= 600.0


def test_how_often_one_has_moved_before_it_was_lost_or_failed_is_told():
    def fail_after(beats):
        return lambda port: _Failing(port, beats)

    with supervised(fake_backend(), factory=fail_after(3)) as (supervisor, (seat,)):
        for _ in range(2):
            request = ask(supervisor, seat, "add", 1)
            supervisor.wait([request])
            assert request.beats == 3
    with scripted(Delay(nth=FIRST, seconds=8.0, beats=3)) as (supervisor, (seat,)):
        request = ask(supervisor, seat, "add", 1, limit_seconds=1.0)  # lost before the first
        supervisor.wait([request])
        assert request.beats == 0
    with scripted(Delay(nth=FIRST, seconds=8.0, beats=3)) as (supervisor, (seat,)):
        request = ask(supervisor, seat, "add", 1, limit_seconds=3.0)
        supervisor.backend.clock.at(5.0, lambda: kill(*supervisor.pids))
        supervisor.wait([request])
        assert request.beats == 2


class _Failing(Servant):
    def __init__(self, port, beats):
        super().__init__(port)
        self.beats = beats

    def handle(self, message):
        if isinstance(message, Do):
            for _ in range(self.beats):
                self.port.beat()
            raise KeyError("after all that")


def test_one_that_answers_while_its_stack_is_asked_for_has_answered():
    with scripted(Delay(nth=FIRST, seconds=1.1)) as (supervisor, (seat,)):
        assert answers(supervisor, ask(supervisor, seat, "add", 1, limit_seconds=1.0)) == [1]
        assert supervisor.pids == []  # it was ended all the same
        assert add(supervisor, seat) == 1


@processes
def test_a_process_that_hangs_is_told_with_its_real_stack_and_one_that_shows_signs_of_life_goes_on(backend):
    with supervised(backend, start_seconds=20.0) as (supervisor, (seat,)):
        assert answers(supervisor, ask(supervisor, seat, "work", 10, limit_seconds=0.3)) == ["done"]
        request = ask(supervisor, seat, "run", _wait_for_ever, limit_seconds=1.0)
        supervisor.wait([request])
        assert isinstance(request.error, WorldHung)
        assert "in _wait_for_ever" in request.error.stack
        assert supervisor.pids == []


def _wait_for_ever() -> None:
    threading.Event().wait()


# ---- output ----


def said(capfd):
    return capfd.readouterr().out.split()


@pytest.mark.parametrize("fault", [Death, Hang])
def test_what_a_request_printed_that_was_lost_is_for_whoever_asked_to_show(fault, capfd):
    faults = fault(nth=FIRST, when=UNSENT), Delay(seat=1, nth=FIRST, seconds=0.01)
    with scripted(*faults, count=2) as (supervisor, seats):
        requests = [ask(supervisor, seat, "say", f"by-{seat.index}", limit_seconds=1.0) for seat in seats]
        supervisor.wait(requests)
        assert said(capfd) == ["by-1"]
        assert [output.content for output in requests[0].outputs] == ["by-0\n"]
        supervisor.wait([ask(supervisor, seats[0], "say", "again")])
        assert said(capfd) == ["again"]


def test_what_requests_printed_that_are_not_waited_for_is_shown_as_they_are_answered(capfd):
    with scripted(Delay(nth=FIRST + 1, seconds=1.0)) as (supervisor, (seat,)):
        first, second = ask(supervisor, seat, "say", "one"), ask(supervisor, seat, "say", "two")
        supervisor.wait([first])
        assert said(capfd) == ["one"]
        supervisor.wait([second])
        assert said(capfd) == ["two"]


def test_what_one_printed_that_is_given_up_as_lost_is_never_shown(capfd):
    with scripted(Hang(nth=FIRST + 1, when=UNSENT), count=2) as (supervisor, seats):
        supervisor.settle([ask(supervisor, seats[0], "say", "before")])
        ask(supervisor, seats[0], "say", "lost")
        add(supervisor, seats[1])  # what the other has said is taken in meanwhile
        supervisor.give_up(seats[0], None, lost=True)
        assert len(supervisor.pids) == 1
        supervisor.settle([ask(supervisor, seats[0], "say", "after")])
    assert said(capfd) == ["before", "after"]


def test_what_one_printed_in_vain_is_shown_when_all_is_closed(capfd):
    with scripted(Hang(nth=FIRST + 1, when=UNSENT)) as (supervisor, (seat,)):
        supervisor.settle([ask(supervisor, seat, "say", "before")])
        ask(supervisor, seat, "say", "unheard")
        assert said(capfd) == ["before"]
    assert said(capfd) == ["unheard"]


# ---- ending ----


def test_one_that_is_busy_when_all_is_closed_has_a_moment_to_end():
    faults = Hang(nth=FIRST), Delay(seat=1, nth=FIRST, seconds=BUSY_SECONDS / 2)
    with scripted(*faults, count=2) as (supervisor, seats):
        requests = [ask(supervisor, seat, "add", 1, limit_seconds=100.0) for seat in seats]
        began = supervisor.backend.clock.now()
        assert supervisor.close(50.0) is None  # nobody asks for what was under way
        assert requests[1].value == 1
        assert supervisor.backend.clock.now() - began < BUSY_SECONDS + 0.1


def test_one_that_is_slow_to_close_is_waited_for_up_to_its_limit():
    for seconds in (40.0, 60.0):
        with scripted(Delay(nth=FIRST + 1, seconds=seconds)) as (supervisor, (seat,)):
            add(supervisor, seat)
            error = supervisor.close(50.0)
            assert isinstance(error, WorldHung) == (seconds > 50)


def test_one_that_hangs_while_it_closes_is_told_when_all_are_closed():
    closed = []

    class Closing(Servant):
        def close(self):
            closed.append(self.port.index)
            if self.port.index == 0:
                hang()

    with supervised(fake_backend(pickles=False), 3, factory=Closing) as (supervisor, seats):
        for seat in seats:
            add(supervisor, seat)
        error = supervisor.close(5.0)
    assert isinstance(error, WorldHung)
    assert "while closing (worker 0)" in str(error)
    assert "in hang" in error.stack
    assert closed == [0, 1, 2]


def test_one_that_fails_to_close_is_told_and_one_that_dies_has_nothing_left_to_lose():
    class Closing(Servant):
        def close(self):
            if self.port.index == 0:
                die()
            raise KeyError(f"servant {self.port.index} was not closed")

    with supervised(fake_backend(pickles=False), 3, factory=Closing) as (supervisor, seats):
        for seat in seats:
            add(supervisor, seat)
        error = supervisor.close()
    assert isinstance(error, KeyError)
    assert "servant 1" in str(error)


@processes
def test_closing_ends_processes_that_are_busy(backend, monkeypatch):
    monkeypatch.setattr("stretto.workers.supervisor.BUSY_SECONDS", 0.1)
    with supervised(backend, 2) as (supervisor, seats):
        ask(supervisor, seats[0], "run", _wait_for_ever)
        add(supervisor, seats[1])
        pids = supervisor.pids
        supervisor.close()
        assert len(pids) == 2
        assert all(not Path(f"/proc/{pid}").exists() for pid in pids)
