"""More than the machine allows: fewer workers and a warning, or one clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from gymnasium import spaces

import stretto
from stretto.testing import play, sample_actions
from tests.faults.worlds import Wide
from tests.worlds import CountTo, Drift

pytestmark = pytest.mark.timeout(90)

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, resource, sys, warnings
import numpy as np
import stretto
from tests.worlds import CountTo
{limit}
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    envs = stretto.make_vec(CountTo, 40, backend={backend!r}, workers={workers}, isolate={isolate})
told = [str(one.message) for one in warned if issubclass(one.category, stretto.FewerWorkers)]
assert len(told) == 1 and all(one.filename == "<string>" for one in warned), warned
envs.reset(seed=0)
for _ in range(3):
    result = envs.step(np.ones(40, int))
assert result.observations[:, 0].tolist() == [3] * 40
if envs.worker_pids:
    os.kill(envs.worker_pids[0], 9)  # there is room for one that has to be replaced
    assert envs.step(np.ones(40, int)).observations[:, 0].tolist() == [4] * 40
    os.close(os.open("/dev/null", os.O_RDONLY))
envs.close()
print(told[0])
print(envs.choice)
"""


FEW_PROCESSES = """
# The limit counts all processes of a real user, and does not bind those who may ignore it: be one who has none, and
# may not (21: CAP_SYS_ADMIN, 24: CAP_SYS_RESOURCE), yet may read the files of this installation.
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for capability in (21, 24):
    assert libc.prctl(24, capability, 0, 0, 0) == 0  # PR_CAPBSET_DROP: not after an exec either
resource.setrlimit(resource.RLIMIT_NPROC, (8, 8))
os.setresuid(54321, 0, 0)
head, caps = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capget(head, caps) == 0
for field in (0, 1, 2):
    caps[field] &= ~(1 << 21 | 1 << 24)
assert libc.capset(head, caps) == 0
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(("backend", "descriptors"), [("process", 60), ("process", 30), ("thread", 40)])
def test_with_few_descriptors_it_goes_on_with_fewer_workers_and_says_so(backend, descriptors, isolate):
    if backend == "thread" and isolate:
        pytest.skip("threads are not isolated")
    limit = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))"
    ended = run(PROGRAM.format(limit=limit, backend=backend, workers=40, isolate=isolate))
    assert ended.stderr == ""
    assert "because 40 cannot be had" in ended.stdout
    assert "Too many open files" in ended.stdout


def test_with_no_descriptors_at_all_there_is_one_clear_error():
    program = (
        "import os, resource\n"
        "from stretto import make_vec\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        "while True:\n"
        "    try: os.dup(0)\n"
        "    except OSError: break\n"
        "make_vec('CartPole-v1', 4, backend='process', workers=2)\n"
    )
    ended = run(program)
    assert "ResourceError" in ended.stderr.splitlines()[-1]
    assert "Too many open files" in ended.stderr.splitlines()[-1]
    assert ended.stderr.count("Traceback") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user with few processes")
@pytest.mark.parametrize("isolate", [False, True])
def test_with_few_processes_it_goes_on_with_fewer_workers_and_says_so(isolate, tmp_path):
    ended = run(PROGRAM.format(limit=FEW_PROCESSES, backend="process", workers=12, isolate=isolate))
    assert ended.stderr == ""
    assert "because 12 cannot be had" in ended.stdout
    assert "Resource temporarily unavailable" in ended.stdout


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
@pytest.mark.parametrize("transport", ["shared", "message"])
def test_more_arrays_than_memory_are_refused_with_how_much_there_is(backend, transport):
    size = psutil.virtual_memory().total // 4

    class Vast(CountTo):
        """Sees more than fits into memory."""

        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.MultiBinary(size)

    workers = {} if backend == "serial" else {"workers": 2}
    with pytest.raises(stretto.ResourceError, match=r"arrays of these environments take \d+\.\d GB.*use fewer"):
        stretto.make_vec(Vast, 4, backend=backend, transport=transport, **workers)


def test_a_world_that_finds_no_memory_is_told_like_any_other_failure():
    program = (
        "import resource\n"
        "import numpy as np, stretto\n"
        "from tests.worlds import CountTo\n"
        "class Greedy(CountTo):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.hoard = np.empty(100_000_000)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (3_000_000_000,) * 2)\n"
        "stretto.make_vec(Greedy, 16, backend='process', workers=2, isolate=True)\n"
    )
    ended = run(program)
    assert "MemoryError" in ended.stderr
    assert "while building (slot" in ended.stderr


@pytest.mark.parametrize("transport", ["shared", "message"])
def test_a_thousand_environments_in_two_workers(transport):
    # They draw from no global generator; to watch each for that takes longer than all the rest, and once is enough.
    layout = {"backend": "process", "workers": 2, "isolate": True, "transport": transport}
    layout["global_rng"] = "auto" if transport == "shared" else "shared"
    with stretto.make_vec(Drift, 1000, backend="serial", global_rng=layout["global_rng"]) as envs:
        actions = sample_actions(envs, 4)
        expected = play(envs, actions, 1)
    with stretto.make_vec(Drift, 1000, **layout) as envs:

        def kill(number: int) -> None:
            if number == 2:
                os.kill(envs.worker_pids[0], 9)

        play(envs, actions, 1, before_step=kill).check_same(expected, "a thousand on two workers and in the caller")
        assert len(envs.worker_pids) == 2


def test_a_thousand_environments_can_be_sent_one_by_one():
    with stretto.make_vec(CountTo, 1000, backend="process", workers=2) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(1000, int))
        seen: list[int] = []
        while len(seen) < 1000:
            seen += envs.recv(ready=min(64, 1000 - len(seen))).ids.tolist()
        assert sorted(seen) == list(range(1000))


@pytest.mark.parametrize("transport", ["shared", "message"])
def test_answers_larger_than_a_pipe_arrive(transport):
    size = 300_000
    layout = {"backend": "process", "workers": 2, "isolate": True, "transport": transport, "step_timeout": 5.0}
    with stretto.make_vec(lambda: Wide(size), 8, **layout) as envs:
        envs.reset(seed=0)
        for number in range(1, 4):
            assert (envs.step(np.zeros(8, int)).observations == number).all()
        assert envs.map(lambda env: bytes(2_000_000))[7] == bytes(2_000_000)
        assert envs.statistics().restarts == 0


def test_a_message_larger_than_a_pipe_does_not_wait_for_a_worker_that_is_busy():
    import time

    from tests.worlds import Slow

    with stretto.make_vec(lambda: Slow(0.5), 2, backend="process", workers=2, isolate=True) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(2, int))
        began = time.monotonic()
        seat = envs._engine.supervisor.seats[0]
        payload = bytes(3_000_000)
        from stretto.envs.messages import MapWorlds

        request = envs._engine.supervisor.ask(
            seat, lambda w: w.send(MapWorlds(lambda env: len(payload))), "mapping", 60.0
        )
        assert time.monotonic() - began < 0.3
        envs.recv()
        envs._engine.supervisor.settle([request])
        assert request.value == [3_000_000]


COLLECTION = """
import resource, warnings
import stretto
from tests.worlds import Drift
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    found = stretto.collect(Drift, "random", 20, max_steps=5, backend="process", workers=16, check_reuse=False)
assert all(one.filename == "<string>" for one in warned), warned
print([str(one.message) for one in warned if issubclass(one.category, stretto.FewerWorkers)])
print(found.digest())
"""


def test_rollouts_are_collected_by_fewer_workers_where_there_are_few_descriptors():
    ended = run(COLLECTION)
    assert ended.stderr == ""
    told, digest = ended.stdout.splitlines()
    assert "because 16 cannot be had" in told
    assert "Too many open files" in told
    assert digest == stretto.collect(Drift, "random", 20, max_steps=5, backend="serial").digest()
