"""A contestant in a process of its own, kept alive between its turns: built once, asleep while others are measured.

So that one contestant's threads, processes or failures never touch another's, and so that a slow one can be ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil


class HostFailed(Exception):
    """The contestant cannot go on; the message says why in one line."""


class Host:
    """The benchmark's end. Use as a context manager."""

    def __init__(self, *arguments: str, script: str = __file__, checkout: Path | None = None) -> None:
        """Start a contestant, of another checkout if one is given: `script`, which calls `serve`, with its arguments."""
        environment = dict(os.environ)
        if checkout is not None:
            script = str(checkout / "benchmarks" / Path(script).name)
            environment["PYTHONPATH"] = str(checkout / "src")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        self._process = subprocess.Popen(
            [sys.executable, script, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C reaches the benchmark alone, which then ends everybody
        )
        self._pending = b""

    def build(self, timeout_seconds: float) -> dict[str, Any]:
        """Wait until the contestant is there."""
        return self._receive(timeout_seconds)

    def run(self, *numbers: float, timeout_seconds: float) -> dict[str, Any]:
        """Let it do something, with these numbers; return what it says about it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: the answer says so
            self._process.stdin.write(json.dumps(numbers).encode() + b"\n")
            self._process.stdin.flush()
        return self._receive(timeout_seconds)

    def _receive(self, timeout_seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_seconds
        while b"\n" not in self._pending:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise HostFailed(f"no answer within {timeout_seconds:.0f} s")
            data = os.read(fd, 1 << 16)
            if not data:
                raise HostFailed(f"it ended: {self._last_error()}")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise HostFailed(reply["error"])
        return reply

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.poll()}"

    def processes(self) -> list[psutil.Process]:
        """Return the contestant's processes, itself first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(self._process.pid)
            return [main, *main.children(recursive=True)]
        return []

    def close(self) -> None:
        """End it and all that it started; may be called twice."""
        family = self.processes() if self._process.poll() is None else []
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10 if family else 0)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- the contestant's own process ----


def race(contestant: Any, batches: list[Any], seconds: float, work_seconds: float) -> dict[str, Any]:
    """Step until the time is up, computing for `work_seconds` in the caller after each step of all.

    `quick` is the time of a step if all were as quick as the quickest tenth: what it is while nothing disturbs.
    """
    if hasattr(contestant, "race"):
        return dict(contestant.race(batches, seconds, work_seconds))
    clock, step = time.perf_counter, contestant.step
    steps, times = 0, []
    began = last = clock()
    end = began + seconds
    while last < end:
        steps += step(batches[len(times) % len(batches)])
        if work_seconds:
            until = clock() + work_seconds
            while clock() < until:
                pass
        now = clock()
        times.append(now - last)
        last = now
    times.sort()
    return {"steps": steps, "seconds": last - began, "quick": times[len(times) // 10] * len(times) / steps}


def serve(build: Callable[[], Any], run: Callable[..., dict[str, Any]]) -> None:
    """Build a contestant and let it `run(contestant, *numbers)` whenever asked, until the benchmark closes our input."""
    # Answers go out on a descriptor that nothing printed in here can reach.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(reply: dict[str, Any]) -> None:
        answers.write(json.dumps(reply) + "\n")

    try:
        contestant = build()
        answer({"choice": getattr(contestant, "choice", None)})
        for line in sys.stdin:
            answer(run(contestant, *json.loads(line)))
        contestant.close()
    except Exception as error:  # noqa: BLE001  whatever a peer raises is its result
        text = str(error).strip().splitlines()
        answer({"error": f"{type(error).__name__}: {text[0] if text else ''}"[:200]})


def main(entry: str, world_name: str, num_envs: int) -> None:
    """Be a contestant that steps a world."""
    from contestants import BATCHED_ENTRIES, ENTRIES
    from worlds import ALL_WORLDS

    world, batches = ALL_WORLDS[world_name], []

    def build() -> Any:
        batches.extend(world.actions(num_envs))
        return {**ENTRIES, **BATCHED_ENTRIES}[entry].build(world, num_envs)

    serve(build, lambda contestant, *numbers: race(contestant, batches, *numbers))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
