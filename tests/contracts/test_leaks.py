"""The fixture that watches every test sees what it is there to see."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import stretto
from tests.conftest import Held
from tests.worlds import CountTo


def test_a_vector_environment_that_is_not_closed_is_seen_in_every_way():
    before = Held.now()
    envs = stretto.make_vec(CountTo, 2, backend="process", workers=2)
    envs.reset(seed=0)
    left = " ".join(Held.now().beyond(before))
    for kind in ("process", "descriptors of pipe", "descriptors of socket", "mappings", "cores"):
        assert kind in left
    envs.close()
    assert Held.now().beyond(before) == []


def test_one_that_is_forgotten_is_closed_by_its_finalizer():
    before = Held.now()
    stretto.make_vec(CountTo, 2, backend="process", workers=2).reset(seed=0)
    assert Held.now().beyond(before) == []


def test_a_thread_and_a_descriptor_are_seen():
    before, release = Held.now(), threading.Event()
    thread = threading.Thread(target=release.wait, name="left")
    thread.start()
    fd = os.open("/dev/null", os.O_RDONLY)
    found = " ".join(Held.now().beyond(before))
    release.set()
    thread.join()
    os.close(fd)
    assert "thread left" in found
    assert "/dev/null" in found


def test_a_program_that_forgets_to_close_ends_without_a_word_and_leaves_nothing():
    program = (
        "import stretto\n"
        "from tests.worlds import CountTo\n"
        "envs = stretto.make_vec(CountTo, 4, backend='process', workers=2, isolate=True)\n"
        "envs.reset(seed=0)\n"
        "print(*envs.worker_pids)\n"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    pids = ended.stdout.split()
    assert len(pids) == 2
    assert not any(Path("/proc", pid).exists() for pid in pids)
