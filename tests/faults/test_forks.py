"""What was handed out before a fork stays as it was, in both processes, whoever goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys
import numpy as np
import stretto
from tests.worlds import Frames

def numbers(envs, count):
    return [envs.step([0, 1]).observations[:, 0, 0].tolist() for _ in range(count)]

def make(**options):
    envs = stretto.make_vec(Frames, 2, **options)
    envs.reset(seed=3)
    return envs

def step(envs, held):
    given = envs.step([0, 1]).observations
    held.append((given, given.copy()))
    del held[:-3]
    assert np.all(given == given[:, :1, :1])
    return given[:, 0, 0].tolist()

def check(held):
    assert all(np.array_equal(one, copied) for one, copied in held)

with make(backend="serial", copy=False) as plain:
    expected = numbers(plain, 40)
held = []
"""

STEPPED_BY_THE_PARENT = """
envs = make(backend="process", workers=2, isolate=True)
assert [step(envs, held) for _ in range(10)] == expected[:10]
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    os.close(writes)
    os.read(reads, 1)  # ends when the parent has stepped on, and let go of what it held
    check(held)
    envs.close()
    check(held)
    os._exit(0)
old, held = held, []
assert [step(envs, held) for _ in range(15)] == expected[10:25]
check(old)
del old
assert [step(envs, held) for _ in range(15)] == expected[25:]
os.close(writes)
assert os.waitpid(child, 0)[1] == 0
check(held)
envs.close()
check(held)
"""

STEPPED_BY_ALL = """
envs = make(backend="serial")
assert [step(envs, held) for _ in range(10)] == expected[:10]
before, children = list(held), []

def fork():
    parent, child = os.getpid(), os.fork()
    children.append((parent, child))
    return child

if not fork():
    fork()  # the child has a child, too
assert [step(envs, held) for _ in range(15)] == expected[10:25]
check(before)
del before
fork()
assert [step(envs, held) for _ in range(15)] == expected[25:]
check(held)
fork()
rows = envs.reset(options={"reset_mask": np.array([True, False])})[0]
assert np.all(rows[0] == 0) and np.all(rows[1] == expected[-1][1])
envs.close()
check(held)
for parent, child in children:
    if parent == os.getpid():
        assert os.waitpid(child, 0)[1] == 0
"""


CLOSED_IN_THE_CHILD = """
envs = make(backend="process", workers=1)  # the caller, who may have others later
assert [step(envs, held) for _ in range(10)] == expected[:10]
child = os.fork()
if child == 0:
    try:
        envs.step([0, 1])
    except stretto.ClosedError:
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert [step(envs, held) for _ in range(15)] == expected[10:25]
check(held)
envs.close()
"""

PROGRAMS = {"process": STEPPED_BY_THE_PARENT, "serial": STEPPED_BY_ALL, "one worker": CLOSED_IN_THE_CHILD}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_was_handed_out_stays_in_both_processes(program):
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", PROGRAM + program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
