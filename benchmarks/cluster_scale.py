"""What breaks first on a large cluster: the real scheduler of evaluations with simulated workers, 1 to 10,000 of them.

    python benchmarks/cluster_scale.py [--call-ms 0.8] [--workers 1,10,100,1000,10000] [--seconds 1,10,60]

The queue of tasks, the supervisor and its waiting are those that run on a cluster. Workers are simulated: an episode takes
its time on a clock that runs on while the caller computes, and that skips the time for which it would sleep. A call of an
actor takes the caller `--call-ms` of computing, as `benchmarks/cluster.py` measures it. `efficiency` is the
share of their time for which workers play.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
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
    """Play `rounds` episodes of about so many seconds on each worker; return the efficiency, and CPU seconds an episode.

    Both are of the time between the end of the first round and the beginning of the last. Episodes differ in length by up to
    half, so that they do not all end at once.
    """
    clock, draw = SkippingClock(), random.Random(0)

    def start(index, capacity, arena, bell, factory, **_):
        return SimulatedWorker(index, capacity, clock, call_seconds)

    supervisor = Supervisor(Backend("simulated", start, shares_memory=False, clock=clock))
    for _ in range(workers):
        supervisor.add_seat(None, inline=False)
    queue = TaskQueue(supervisor, Ready(), 60.0)
    queue.do([0.0] * workers, lambda task: (task, "playing", None), lambda *_: ())  # all have started
    lengths = [seconds * draw.uniform(0.5, 1.5) for _ in range(workers * rounds)]
    ended: list[tuple[float, float, float]] = []

    def take(length, _):
        ended.append((clock.now(), time.process_time(), length))
        return ()

    queue.do(lengths, lambda task: (task, "playing", None), take)
    (began, cpu, _), (over, cpu_then, _) = ended[workers - 1], ended[-workers - 1]
    played = sum(max(0.0, min(end, over) - max(end - length, began)) for end, _, length in ended)
    return played / (over - began) / workers, (cpu_then - cpu) / (len(ended) - 2 * workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--call-ms", type=float, default=0.8)
    parser.add_argument("--workers", default="1,10,100,1000,10000")
    parser.add_argument("--seconds", default="1,10,60")
    given = parser.parse_args()
    print("| workers | episode | efficiency | caller, ms an episode |\n|---|---|---|---|")
    for workers in map(int, given.workers.split(",")):
        for seconds in map(float, given.seconds.split(",")):
            efficiency, cpu = simulate(workers, seconds, max(3, 40 // workers), given.call_ms / 1000)
            print(f"| {workers:,} | {seconds:g} s | {efficiency:.2f} | {cpu * 1000:.2f} |", flush=True)


if __name__ == "__main__":
    main()
