"""Whole programs: however they are started and however they end, nothing is left and nothing is said."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import stretto
from stretto.testing import play, sample_actions
from tests.faults.worlds import Parent

pytestmark = pytest.mark.timeout(90)

ROOT = Path(__file__).parents[2]
SECONDS = 1.0
"""How long what belongs to a program may live on after it."""

WORLD = """
import os, sys, gymnasium, numpy as np, stretto
from gymnasium import spaces

class Mine(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1e9, 1e9, (2,), np.float64), spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0.0
        return self.see(), {}
    def see(self):
        return np.array([self.at, 0.0])
    def step(self, action):
        self.at += action + self.np_random.random()
        return self.see(), self.at, False, False, {}
"""

USE = """
def use(**options):
    options = {"backend": "process", "workers": 2, "isolate": True, **options}
    envs = stretto.make_vec(Mine, 4, **options)
    first, _ = envs.reset(seed=5)
    for _ in range(3):
        result = envs.step(np.ones(4, int))
    pids = set(envs.map(lambda env: os.getpid()))
    assert pids == set(envs.worker_pids) and os.getpid() not in pids
    # In one piece: of several threads, each has its line to itself.
    sys.stdout.write(" ".join([f"{result.rewards.sum():.12f}", *map(str, envs.worker_pids)]) + "\\n")
    sys.stdout.flush()
    return envs
"""


def run(*arguments: str, text: str | None = None, cwd: Path = ROOT, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False, cwd=cwd, **options
    )


def check_gone(pids: Iterable[int], seconds: float = SECONDS) -> None:
    """Check that processes are gone, or will be in a moment."""
    pids, deadline = set(pids), time.monotonic() + seconds
    while left := [pid for pid in pids if _lives(pid)]:
        assert time.monotonic() < deadline, f"{left} live on"
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def expected_sum() -> str:
    scope: dict[str, Any] = {"__name__": "somewhere"}
    exec(WORLD, scope)
    with stretto.make_vec(scope["Mine"], 4, backend="serial") as envs:
        envs.reset(seed=5)
        for _ in range(3):
            result = envs.step(np.ones(4, int))
    return f"{result.rewards.sum():.12f}"


def check_used(ended: subprocess.CompletedProcess[str], times: int = 1, err: str = "") -> None:
    """Check that a program stepped its worlds, said nothing else, and left nothing."""
    assert ended.stderr == err
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [expected_sum()] * times
    check_gone(int(pid) for line in lines for pid in line.split()[1:])


# ---- how they are started ----


def test_a_script_without_a_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WORLD + USE + "use().close()\n")
    check_used(run("-W", "error", str(script)))


def test_a_script_that_registers_its_own_id(tmp_path):
    script = tmp_path / "script.py"
    call = "use().close()\n"
    script.write_text(
        f"{WORLD}\ngymnasium.register('Mine-v0', entry_point=Mine, disable_env_checker=True, order_enforce=False)\n"
        + USE.replace("make_vec(Mine", "make_vec('Mine-v0'")
        + call
    )
    check_used(run("-W", "error", str(script)))


@pytest.mark.parametrize("arguments", [["-"], ["-i", "-q"]], ids=" ".join)
def test_a_session_that_is_typed(arguments):
    # A blank line ends each block, as it does at the prompt; what belongs to a class has none in it.
    typed = WORLD.strip().replace("\n\nclass", "\nclass") + "\n\n" + USE.strip() + "\n\nuse().close()\n"
    ended = run(*arguments, text=typed)
    check_used(ended, err=ended.stderr if "-i" in arguments else "")  # the prompts go there
    assert "Error" not in ended.stderr


def test_a_module_of_a_package_with_a_neighbour(tmp_path):
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "stock.py").write_text(WORLD)
    (package / "__main__.py").write_text("from .stock import *\n" + USE + "use().close()\n")
    check_used(run("-W", "error", "-m", "shop", cwd=tmp_path))


def test_a_command_line_without_a_file():
    check_used(run("-W", "error", "-c", WORLD + USE + "use().close()"))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_inside_a_daemonic_process(method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"{WORLD}{USE}\n"
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    process = context.Process(target=use, daemon=True)\n"  # it forgets to close
        "    process.start(); process.join(); sys.exit(process.exitcode)\n"
    )
    check_used(run(str(script)))


def test_after_torch_has_started_threads():
    pytest.importorskip("torch")
    program = "import torch\ntorch.set_num_threads(4)\na = torch.rand(800, 800)\na @ a\n"
    check_used(run("-c", program + WORLD + USE + "use().close()\na @ a\nuse().close()"), times=2)


def test_after_a_fork_the_child_gets_its_own_workers_and_cannot_touch_its_parents():
    check_used(
        run(
            "-c",
            WORLD + USE + "envs = use()\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    try:\n"
            "        envs.step(np.ones(4, int))\n"
            "    except stretto.ClosedError as error:\n"
            "        assert 'forked' in str(error)\n"
            "    else:\n"
            "        os._exit(1)\n"
            "    envs.close()\n"
            "    use().close()\n"
            "    sys.exit(0)\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
            "envs.step(np.ones(4, int))\n"
            "assert envs.statistics().restarts == 0\n"
            "envs.close()",
        ),
        times=2,
    )


def test_a_serial_one_may_be_used_after_a_fork():
    program = (
        "envs = stretto.make_vec(Mine, 2, backend='serial')\n"
        "envs.reset(seed=0)\n"
        "child = os.fork()\n"
        "envs.step([0, 1]); envs.close()\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
    )
    ended = run("-W", "error", "-c", WORLD + program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_from_a_thread_that_is_not_the_main_one_and_from_several():
    program = (
        "import threading\n"
        "threads = [threading.Thread(target=lambda: use().close()) for _ in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    check_used(run("-W", "error", "-c", WORLD + USE + program), times=3)


def test_with_signals_blocked_and_children_ignored():
    program = (
        "import signal\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGCHLD, signal.SIGTERM])\n"
        "envs = use()\n"
        "os.kill(envs.worker_pids[0], signal.SIGKILL)\n"
        "envs.step(np.ones(4, int))\n"
        "assert envs.statistics().restarts == 1\n"
        "envs.close()\n"
    )
    check_used(run("-c", WORLD + USE + program))


def test_with_its_standard_streams_closed(tmp_path):
    script = tmp_path / "script.py"
    mark = tmp_path / "mark"
    script.write_text(
        f"{WORLD}\nenvs = stretto.make_vec(Mine, 4, backend='process', workers=2, isolate=True)\n"
        f"envs.reset(seed=0); envs.step([1] * 4); envs.close(); open({str(mark)!r}, 'w').close()\n"
    )
    subprocess.run(f"exec {sys.executable} {script} <&- >&- 2>&-", shell=True, timeout=60, check=True, cwd=ROOT)
    assert mark.exists()


# ---- how they end ----


def test_a_program_that_forgets_to_close_ends_without_a_word():
    program = "envs = use()\nothers = use(workers=1)\ninline = use\n"
    check_used(run("-W", "error", "-X", "dev", "-c", WORLD + USE + program), times=2)


def test_worlds_that_are_forgotten_are_closed_at_exit(tmp_path):
    program = (
        "class Closing(Mine):\n"
        f"    def close(self): open(os.path.join({str(tmp_path)!r}, f'{{os.getpid()}}-{{id(self)}}'), 'w').close()\n"
        "one = stretto.make_vec(Closing, 4, backend='process', workers=3)\n"
        "two = stretto.make_vec(Closing, 2, backend='thread', workers=2)\n"
        "three = stretto.make_vec(Closing, 1, backend='serial')\n"
    )
    ended = run("-W", "error", "-c", WORLD + program)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(list(tmp_path.iterdir())) == 7


@pytest.mark.parametrize("last", ["sys.exit(5)", "raise SystemExit(5)", "os._exit(5)"])
def test_the_exit_code_is_the_programs_own(last):
    ended = run("-W", "error", "-c", f"{WORLD}{USE}\nenvs = use()\n{last}")
    assert (ended.returncode, ended.stderr) == (5, "")
    check_gone(map(int, ended.stdout.split()[1:]))


def test_closing_twice_or_in_another_order_is_quiet():
    program = (
        "one, two = use(), use()\n"
        "two.close(); two.close(); one.close(); one.close()\n"
        "del one\n"
        "import gc; gc.collect()\n"
        "use().close()\n"
    )
    check_used(run("-W", "error", "-X", "dev", "-c", WORLD + USE + program), times=3)


def test_an_exception_that_ends_the_program_is_all_that_is_said():
    ended = run("-c", f"{WORLD}{USE}\nenvs = use()\nenvs.step([9] * 4)\n")
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1
    assert "InvalidAction" in ended.stderr.splitlines()[-1]
    check_gone(map(int, ended.stdout.split()[1:]))


STEP_FOR_EVER = """
with use() as envs:
    while True:
        envs.step(np.ones(4, int))
"""


@contextlib.contextmanager
def running(program: str, **options: Any) -> Any:
    """Run a program in a session of its own; yield it and the processes that it names in its first line."""
    command = [sys.executable, "-c", program]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **streams, **options) as process:
        try:
            pids = [int(word) for word in process.stdout.readline().split()[1:]]
            family = {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
            assert set(pids) <= family
            yield process, family
        finally:
            process.kill()


def test_ctrl_c_ends_a_program_and_its_workers_say_nothing():
    with running(WORLD + USE + STEP_FOR_EVER) as (process, family):
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=30)
        assert time.monotonic() - began < 2.0
        assert process.returncode == -signal.SIGINT
        assert err.count("Traceback") == 1
        assert err.strip().endswith("KeyboardInterrupt")
        check_gone(family)


def test_ctrl_c_ends_a_program_whose_worlds_hang_too():
    hangs = "\nimport time\ndef doze(self, action): time.sleep(600)\nMine.step = doze\n"
    use = "envs = stretto.make_vec(Mine, 4, backend='process', workers=2, isolate=True)\nenvs.reset(seed=0)\n"
    program = f"{WORLD}{hangs}{use}print('x', *envs.worker_pids, flush=True)\nwith envs: envs.step([0] * 4)\n"
    with running(program) as (process, family):
        time.sleep(0.2)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert time.monotonic() - began < 4.0
        assert err.count("Traceback") == 1
        check_gone(family)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_whoever_ends_the_program_ends_all_that_it_started(number, tmp_path):
    program = (
        "import sys, time, numpy as np, stretto\n"
        "from tests.faults.worlds import Parent\n"
        f"make = lambda: Parent({str(tmp_path)!r})\n"
        "envs = stretto.make_vec(make, 4, backend='process', workers=3)\n"  # one share is the caller's own
        "envs.reset(seed=0)\n"
        "print('x', *envs.worker_pids, flush=True)\n"
        "while True: envs.step(np.ones(4, int))\n"
    )
    with running(program) as (process, family):
        assert len(family) >= 3 + 2 * 4
        ours = {process.pid, *family}
        callers = set(map(int, (tmp_path / str(process.pid)).read_text().split()))
        os.kill(process.pid, number)
        process.wait(10)
        # What the caller's own share started is the caller's: it is no process of ours.
        check_gone(ours - callers)
        for pid in callers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not [path for path in Path("/dev/shm").iterdir() if "stretto" in path.name]


def test_a_fork_that_lives_on_does_not_keep_the_workers_of_its_dead_parent_alive():
    program = (
        "envs = use()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    import time; time.sleep(600)\n"
        "print(child, flush=True)\n"
        "while True: envs.step(np.ones(4, int))\n"
    )
    with running(WORLD + USE + program) as (process, family):
        child = int(process.stdout.readline())
        process.kill()
        process.wait(10)
        check_gone(family - {child})
        os.kill(child, signal.SIGKILL)


# ---- worlds with processes of their own ----


@pytest.mark.parametrize("transport", ["shared", "message"])
def test_what_a_world_started_is_ended_with_its_worker(transport, tmp_path):
    layout = {"backend": "process", "workers": 2, "isolate": True, "transport": transport}
    (tmp_path / "serial").mkdir()
    with stretto.make_vec(lambda: Parent(tmp_path / "serial"), 2, backend="serial") as envs:
        actions = sample_actions(envs, 12)
        expected = play(envs, actions, 5)
    (tmp_path / "process").mkdir()
    started: set[int] = set()
    with stretto.make_vec(lambda: Parent(tmp_path / "process"), 2, **layout) as envs:

        def kill(number: int) -> None:
            if number in (3, 7):
                victim = envs.worker_pids[number % 2]
                started.update(map(int, (tmp_path / "process" / str(victim)).read_text().split()))
                os.kill(victim, signal.SIGKILL)

        play(envs, actions, 5, before_step=kill).check_same(expected, "a run with deaths and one without")
        assert envs.statistics().restarts == 2
        assert len(started) == 4
        check_gone(started)
    for path in (tmp_path / "process").iterdir():
        check_gone(map(int, path.read_text().split()))


@pytest.mark.usefixtures("workers_without_torch")
def test_what_a_world_started_is_ended_also_if_the_launcher_is_gone(tmp_path):
    from stretto.workers.launcher import launcher

    with stretto.make_vec(lambda: Parent(tmp_path), 2, backend="process", workers=2, isolate=True) as envs:
        envs.reset(seed=0)
        started = {int(pid) for path in tmp_path.iterdir() for pid in path.read_text().split()}
        os.kill(launcher().pid, signal.SIGKILL)
        while envs.statistics().restarts < 2:  # they may still answer, and are missed only when they are asked again
            envs.step(np.ones(2, int))
        assert len(started) == 4
        check_gone(started)
