"""Plain messages go through shared memory, whatever their size, and nobody is given an old answer."""

from __future__ import annotations

import os

import pytest

from stretto.errors import WorkerDied, WorldHung
from stretto.workers.backends import PROCESS
from stretto.workers.requests import sender
from stretto.workers.shared_mailbox import Mailboxes
from stretto.workers.supervisor import Supervisor
from tests.workers.fake import (
    AFTER,
    BEFORE,
    UNCOUNTED,
    UNSENT,
    Death,
    Hang,
    Script,
    fake_backend,
    kill,
)
from tests.workers.servant import Do, Servant

SIZE = 4096


class Boxed:
    """Two servants behind mailboxes, who were given something by value before: only then are there any."""

    def __init__(self, backend):
        self.supervisor = Supervisor(backend)
        self.boxes = Mailboxes(self.supervisor, [Servant, Servant], SIZE)
        self.supervisor.settle([self.by_value("add", 0, seat=0), self.by_value("add", 0, seat=1)])

    def by_value(self, what, value=None, seat=0):
        return self.supervisor.ask(self.supervisor.seats[seat], sender(Do(what, value)), what)

    def ask(self, what, value=None, seat=0, limit_seconds=None):
        """Give a servant a plain message and wait for the answer."""
        request = self.boxes.ask(self.supervisor.seats[seat], Do(what, value), what, limit_seconds)
        self.supervisor.wait([request])
        return request


def boxed_fakes(*faults):
    return Boxed(fake_backend(Script(*faults)))


@pytest.fixture(params=["process", "fake"])
def boxed(request):
    boxed = Boxed(PROCESS if request.param == "process" else fake_backend())
    with boxed.supervisor:
        yield boxed


@pytest.mark.parametrize("size", [0, 1, 3_000, SIZE, 5_000_000])
def test_a_message_and_its_answer_of_any_size_arrive(boxed, size):
    for fill in (b"a", b"b"):
        assert boxed.ask("return", fill * size).value == fill * size


def test_what_fits_goes_through_the_box_and_what_does_not_through_the_mail(boxed):
    mail = boxed.supervisor.seats[0].worker
    for size, frames in ((SIZE // 2, 0), (SIZE, 1)):
        before = mail.read
        boxed.ask("return", b"a" * size)
        assert mail.read - before == frames


def test_messages_by_value_and_plain_ones_are_served_in_turn(boxed):
    assert boxed.ask("add", 1).value == 1
    by_value = boxed.by_value("add", 2)
    boxed.supervisor.settle([by_value])
    assert by_value.value == 3
    assert boxed.ask("add", 3).value == 6
    assert boxed.ask("add", 3, seat=1).value == 3


def test_one_that_raises_after_it_has_answered_does_not_give_the_old_answer(boxed):
    assert boxed.ask("add", 1).value == 1
    assert isinstance(boxed.ask("raise").error, KeyError)
    assert boxed.ask("add", 1).value == 2


def test_what_only_the_one_before_understands_is_not_given_to_a_new_one(boxed):
    assert boxed.ask("add", 1).value == 1
    kill(boxed.supervisor.pids[0])
    for _ in range(2):
        request = boxed.ask("add", 1)
        assert request.lost
        assert isinstance(request.error, WorkerDied)
    by_value = boxed.by_value("add", 1)
    boxed.supervisor.settle([by_value])
    assert by_value.value == 1
    assert boxed.ask("add", 1).value == 2


@pytest.mark.parametrize("moment", [BEFORE, UNSENT, UNCOUNTED, AFTER])
def test_one_that_dies_at_a_message_does_not_give_the_old_answer_and_takes_messages_when_it_is_replaced(moment):
    boxed = boxed_fakes(Death(kind=int, nth=2, when=moment))
    with boxed.supervisor:
        assert boxed.ask("add", 1).value == 1
        second = boxed.ask("add", 1)
        assert (second.value, second.lost) == ((2, False) if moment == AFTER else (None, True))
        boxed.supervisor.settle([boxed.by_value("add", 10)])
        assert boxed.ask("add", 1).value == 11


def test_one_that_hangs_at_a_message_is_told():
    boxed = boxed_fakes(Hang(kind=int, when=UNSENT))
    with boxed.supervisor:
        request = boxed.ask("add", 1, limit_seconds=5.0)
        assert request.lost
        assert isinstance(request.error, WorldHung)


@pytest.mark.parametrize("fault", [Death, Hang])
def test_what_a_message_made_one_print_that_was_lost_is_for_whoever_asked_to_show(fault, capfd):
    boxed = boxed_fakes(fault(kind=int, when=UNSENT))
    with boxed.supervisor:
        seats = boxed.supervisor.seats
        request = boxed.boxes.ask(seats[0], Do("say", "last words"), "saying", 5.0)
        if fault is Hang:
            boxed.ask("say", "other words", seat=1)
            assert capfd.readouterr().out == "other words\n"
        boxed.supervisor.wait([request])
        assert request.lost
        assert capfd.readouterr().out == ""
        assert [output.content for output in request.outputs] == ["last words\n"]


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


@pytest.mark.parametrize("boxed", ["process"], indirect=True)
def test_what_cannot_be_read_is_told_on_either_side(boxed):
    assert "not in this process" in str(boxed.ask("return", Unreadable()).error)
    assert "not in this process" in str(boxed.ask("return", Maker()).error)
    assert boxed.ask("add", 1).value == 1
