"""Every test leaves nothing behind: no process, no thread, no descriptor, no memory."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import cloudpickle
import psutil
import pytest

from stretto.budget import default_budget
from stretto.workers.launcher import Launcher, launcher

SECONDS = 5.0
"""How long what was ended may take to be gone: the kernel gives pages and process entries back in its own time."""

# Stays for the life of the process, once it was needed.
LASTING_THREADS = {"stretto-watchdog"}


@dataclass
class Held:
    """What this process holds now that it should give back."""

    processes: set[int] = field(default_factory=set)
    threads: set[str] = field(default_factory=set)
    descriptors: Counter[str] = field(default_factory=Counter)
    memory: Counter[str] = field(default_factory=Counter)
    cores: int = 0

    @classmethod
    def now(cls) -> Held:
        return cls(_processes(), _threads(), _descriptors(), _memory(), default_budget().total - default_budget().free)

    def beyond(self, before: Held) -> list[str]:
        """Say what is held now that was not held before."""
        found = [f"process {pid} ({_describe(pid)})" for pid in self.processes - before.processes]
        found += [f"thread {name}" for name in self.threads - before.threads]
        found += [f"{count} descriptors of {what}" for what, count in (self.descriptors - before.descriptors).items()]
        found += [f"{count} mappings of {what}" for what, count in (self.memory - before.memory).items()]
        if self.cores > before.cores:
            found.append(f"{self.cores - before.cores} cores of the budget")
        return found


def _processes() -> set[int]:
    """All that descends from this process; the launcher may stay, its children may not."""
    if not Path("/proc/thread-self/children").exists():
        return {child.pid for child in psutil.Process().children(recursive=True)} - {launcher().pid}
    found: set[int] = set()
    parents = [os.getpid()]
    while parents:
        children = [int(pid) for parent in parents for pid in _children(parent)]
        found.update(children)
        parents = children
    return found - {launcher().pid}


def _children(pid: int) -> list[str]:
    # A hundredth of the time in which psutil looks through all processes of the machine.
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found += task.read_text().split()
    return found


def _threads() -> set[str]:
    return {f"{t.name} ({t.ident})" for t in threading.enumerate() if t.name not in LASTING_THREADS}


def _descriptors() -> Counter[str]:
    held = Counter[str]()
    channel = launcher()._socket
    for path in Path("/proc/self/fd").iterdir():
        if channel is not None and int(path.name) == channel.fileno():
            continue
        try:
            target = str(path.readlink())
        except FileNotFoundError:  # the one that listed this folder
            continue
        # Numbers in brackets differ from pipe to pipe; what leaks is told by its kind.
        held[target.partition(":[")[0]] += 1
    return held


def _memory() -> Counter[str]:
    """Mappings of memory that has no name, and files under /dev/shm, which nothing of ours should make."""
    maps = Path("/proc/self/maps").read_bytes()
    held = Counter(found.decode() for found in re.findall(rb"/memfd:(stretto.*)", maps))
    held.update(f"/dev/shm/{path.name}" for path in Path("/dev/shm").iterdir() if "stretto" in path.name)
    return held


def _describe(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())[:80]
    except psutil.Error:
        return "gone meanwhile"


@pytest.fixture(scope="session", autouse=True)
def programs_begin_with_default_signals() -> None:
    """Let no program that a test starts inherit that Ctrl-C and the end of a terminal are ignored, as under `nohup ... &`.

    A handler is not inherited. Here, the end of a terminal goes on to be ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


_known: Held | None = None
"""What is held since the test before. To look takes 4 ms: the kernel lists a thousand mappings."""


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """Look again after a fixture of several tests: it may hold something meanwhile, or let go of it."""
    _look_again(fixturedef)


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[object]) -> None:
    _look_again(fixturedef)


def _look_again(fixturedef: pytest.FixtureDef[object]) -> None:
    global _known
    if fixturedef.scope != "function":
        _known = None


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a test that leaves a process, a thread, a descriptor, memory or a lease of cores behind."""
    global _known
    before, _known = _known or Held.now(), None
    yield
    deadline = time.monotonic() + SECONDS
    while left := (now := Held.now()).beyond(before):
        if time.monotonic() > deadline:
            pytest.fail("left behind: " + "; ".join(left))
        gc.collect()
        time.sleep(0.01)  # nothing announces that the kernel has let go
    _known = now


@pytest.fixture
def workers_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers find no torch that is imported yet, as in a program that has not trained anybody."""
    monkeypatch.setattr(Launcher, "preload_torch", lambda self: None)
    if "torch" in launcher()._preloads:
        launcher().close()
        launcher()._preloads.clear()


@pytest.fixture(scope="module")
def workers_with_torch() -> Iterator[None]:
    """Let no worker of a test take a second to import torch, where it is not the point when it does."""
    launcher().preload("torch")
    yield
    launcher().close()  # to fork from it takes longer, and all others need no torch
    launcher()._preloads.clear()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make ready what takes long otherwise."""
    # What a test module defines travels by value, as from a main program: to import it, a worker would have to import
    # pytest, 0.1 s each time. What other modules define travels by name; tests/workers are about both.
    for module in {item.getparent(pytest.Module).obj for item in session.items}:
        if not module.__name__.startswith("tests.workers."):
            cloudpickle.register_pickle_by_value(module)
    # The collector looks no more at what is there for good: a look took 0.2 s, after every fourth test.
    gc.collect()
    gc.freeze()
