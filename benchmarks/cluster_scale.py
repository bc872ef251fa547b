"""What breaks first on a large cluster: the real scheduler of evaluations with simulated workers, 1 to 10,000 of them.

    python benchmarks/cluster_scale.py [--call-ms 0.8]

The queue of tasks, the supervisor and its waiting are those that run on a cluster. Workers are simulated: an episode takes
its time on a clock that runs on while the caller computes, and that skips the time for which it would sleep. A call of an
actor takes the caller `--call-ms` of computing, as `benchmarks/cluster.py` measures it ("driver"). `efficiency` is the
share of their time for which workers play.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import time

from stretto.evaluation.playing.messages import Ready
from stretto.evaluation.playing.task_queue import TaskQueue
from stretto.workers.base import Backend, Reply, Worker
from stretto.workers.control import DONE, NO_BELL, Clock, private_words
from stretto.workers.supervisor import Supervisor


class SkippingClock(Clock):
    """Goes on while the caller computes, on a core that it has for itself; what it would sleep is skipped."""

    def __init__(self) -> None:
        self._skipped, self._order = 0.0, itertools.count()
        self._ends: list[tuple[float, int, SimulatedWorker]] = []

    def now(self) -> float:
        return time.process_time() + self._skipped

    def at(self, when: float, worker: SimulatedWorker) -> None:
        heapq.heappush(self._ends, (when, next(self._order), worker))

    def poll(self, poller, seconds):
        now = self.now()
        if self._ends and self._ends[0][0] > now:
            self._skipped += self._ends[0][0] - now
        ready = []
        while self._ends and self._ends[0][0] <= self.now():
            _, _, worker = heapq.heappop(self._ends)
            worker.finish()
            ready.append((worker.fd, 1))
        return ready


class SimulatedWorker(Worker):
    """Answers each request when its time has come."""

    numbers = itertools.count(1_000_000)

    def __init__(self, index, capacity, clock: SkippingClock, call_seconds: float) -> None:
        super().__init__(index, private_words(capacity), None, NO_BELL)
        self.fd = next(self.numbers)
        self._clock, self._call = clock, call_seconds
        self._frames, self._under_way = [], []
        self._later(0.0)

    def send(self, message, *, by_value=True) -> int:
        until = time.process_time() + self._call
        while time.process_time() < until:  # what Ray computes for a call
            pass
        self._later(message if isinstance(message, float) else 0.0)
        return self.made

    def _later(self, seconds: float) -> None:
        self.made += 1
        self._clock.at(self._clock.now() + seconds, self)

    def finish(self) -> None:
        self.words[DONE] += 1
        self._frames.append(Reply(self.words[DONE], None))

    @property
    def has_mail(self) -> bool:
        return bool(self._frames)

    def collect(self):
        frames, self._frames = self._frames, []
        return frames

    def exchange(self) -> bool:
        return True

    def stop(self) -> int:
        self._later(0.0)
        return self.made

    def watched(self) -> list[int]:
        return [self.fd]


def simulate(workers: int, seconds: float, rounds: int, call_seconds: float) -> tuple[float, float]:
    """Play `rounds` episodes of so many seconds on each worker; return the efficiency, and CPU seconds an episode."""
    clock = SkippingClock()

    def start(index, capacity, arena, bell, factory, **_):
        return SimulatedWorker(index, capacity, clock, call_seconds)

    supervisor = Supervisor(Backend("simulated", start, shares_memory=False, clock=clock))
    for _ in range(workers):
        supervisor.add_seat(None, inline=False)
    queue = TaskQueue(supervisor, Ready(), 60.0)
    queue.do([0.0] * workers, lambda task: (task, "playing", None), lambda *_: ())  # all have started
    began, cpu = clock.now(), time.process_time()
    queue.do([seconds] * (workers * rounds), lambda task: (task, "playing", None), lambda *_: ())
    took, cpu = clock.now() - began, time.process_time() - cpu
    return rounds * seconds / took, cpu / (workers * rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--call-ms", type=float, default=0.8)
    parser.add_argument("--most", type=int, default=10_000)
    given = parser.parse_args()
    print("| workers | episode | efficiency | caller, ms an episode |\n|---|---|---|---|")
    for workers in (1, 10, 100, 1_000, 10_000):
        for seconds in (1.0, 10.0, 60.0):
            if workers <= given.most:
                efficiency, cpu = simulate(workers, seconds, 3, given.call_ms / 1000)
                print(f"| {workers:,} | {seconds:g} s | {efficiency:.2f} | {cpu * 1000:.2f} |", flush=True)


if __name__ == "__main__":
    main()
