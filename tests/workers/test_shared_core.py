"""Where the kernel runs two of ours on one core beside a free one, one of them is sent there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from stretto.workers import shared_core
from stretto.workers.shared_core import Running, SharedCore, where

CALLER, WORKER, OTHER = 7, 8, 9


class Machine:
    """Cores on which threads run, as the system would tell; `moves` is what was asked of it."""

    def __init__(self, cores: int, running: int, allowed: dict[int, set[int]] | None = None, **on: Running) -> None:
        self.cores, self.running, self.now, self.moves = cores, running, 0.0, []
        self.on = {CALLER: on["caller"], WORKER: on["worker"], OTHER: on.get("other", Running(0, False))}
        self.allowed = allowed or {}

    def where(self, thread: int) -> Running:
        return self.on[thread]

    def get(self, thread: int) -> set[int]:
        return set(self.allowed.get(thread, range(self.cores)))

    def set(self, thread: int, cores: set[int]) -> None:
        self.moves.append((thread, set(cores)))
        if self.on[thread].core not in cores:
            self.on[thread] = self.on[thread]._replace(core=min(cores))


@pytest.fixture
def on_machine(monkeypatch):
    """Return what lets a machine do the looking, so many seconds after each other."""

    def look(machine: Machine, workers=(WORKER,), times: int = 1, seconds: float = 1.0) -> Machine:
        monkeypatch.setattr(shared_core, "where", machine.where)
        monkeypatch.setattr(shared_core, "machine_cores", lambda: machine.cores)
        monkeypatch.setattr(shared_core, "running_programs", lambda: machine.running)
        monkeypatch.setattr(os, "sched_getaffinity", machine.get)
        monkeypatch.setattr(os, "sched_setaffinity", machine.set)
        found = SharedCore(lambda: machine.now)
        for _ in range(times):
            found.leave(workers, [CALLER])
            machine.now += seconds
        return machine

    return look


def test_a_worker_on_its_callers_core_is_sent_to_the_free_one_and_may_go_everywhere_afterwards(on_machine):
    machine = on_machine(Machine(2, 2, caller=Running(0, True), worker=Running(0, True)))
    assert machine.moves == [(WORKER, {1}), (WORKER, {0, 1})]
    assert machine.on[WORKER].core == 1


@pytest.mark.parametrize(
    ("caller", "worker", "running"),
    [
        (Running(0, True), Running(1, True), 2),  # they have a core each
        (Running(0, False), Running(0, True), 1),  # the caller sleeps
        (Running(0, True), Running(0, False), 1),  # the worker sleeps
        (Running(0, True), Running(0, True), 3),  # another program has the other core
    ],
)
def test_else_the_kernel_decides(on_machine, caller, worker, running):
    assert on_machine(Machine(2, running, caller=caller, worker=worker)).moves == []


def test_what_a_user_has_confined_stays_there(on_machine):
    machine = Machine(4, 2, {WORKER: {0}}, caller=Running(0, True), worker=Running(0, True))
    assert on_machine(machine).moves == []
    machine = Machine(4, 2, {WORKER: {0, 3}}, caller=Running(0, True), worker=Running(0, True))
    assert on_machine(machine).moves == [(WORKER, {3}), (WORKER, {0, 3})]


def test_it_is_the_next_core_that_is_free_so_that_not_all_find_the_same(on_machine):
    machine = Machine(8, 2, caller=Running(4, True), worker=Running(4, True))
    assert on_machine(machine).on[WORKER].core == 5
    machine = Machine(8, 2, caller=Running(7, True), worker=Running(7, True))
    assert on_machine(machine).on[WORKER].core == 0


def test_two_workers_on_one_core_get_one_each(on_machine):
    machine = Machine(4, 3, caller=Running(0, True), worker=Running(0, True), other=Running(0, True))
    on_machine(machine, [WORKER, OTHER])
    assert len({machine.on[thread].core for thread in (CALLER, WORKER, OTHER)}) == 3


def test_looks_are_rare(on_machine):
    machine = Machine(2, 2, caller=Running(0, True), worker=Running(0, True))
    machine.set = lambda thread, cores: machine.moves.append(thread)  # a kernel that does not care
    on_machine(machine, times=10, seconds=shared_core.EVERY_SECONDS / 4)
    assert len(machine.moves) == 2 * 3


def test_whoever_has_gone_is_left_alone(monkeypatch):
    monkeypatch.setattr(shared_core, "running_programs", lambda: 1)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    SharedCore().leave([ended.pid], [threading.get_native_id()])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="nobody says which core a process may have")
def test_a_process_that_computes_on_our_core_is_sent_to_another(monkeypatch):
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one core alone")
    monkeypatch.setattr(shared_core, "running_programs", lambda: 1)
    program = "print('runs', flush=True)\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        core = min(allowed)
        os.sched_setaffinity(0, {core})  # so that we stay
        os.sched_setaffinity(busy.pid, {core})
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))  # of the other one, as if it were free
        SharedCore().leave([busy.pid], [threading.get_native_id()])
        monkeypatch.undo()
        assert where(os.getpid()) == Running(core, True)
        assert os.sched_getaffinity(busy.pid) == allowed  # it was confined here, and now has been elsewhere
    finally:
        os.sched_setaffinity(0, allowed)
        busy.kill()
        busy.communicate()
