"""Workers are killed a thousand times: how soon it is noticed, how soon all is back, and whether anything differs.

    python benchmarks/kills.py                    1,000 kills, about three minutes
    python benchmarks/kills.py --kills 100        a quick look
    python benchmarks/kills.py --minutes 30       for that long, however many kills it makes

Needs a checkout (it uses the worlds of tests/) and otherwise idle cores. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import stretto
from stretto.envs.infos import info_of
from stretto.testing import difference, play, sample_actions
from tests.faults.killing import Killer
from tests.faults.worlds import OwnGenerator
from tests.worlds import Drift, GlobalDrift, Slow, TaskWorld

SLOTS, STEPS, EVERY = 6, 100, 4
NOTICE_BAR, BACK_BAR = 0.1, 0.5

SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "CartPole-v1": ("CartPole-v1", {}),
    "own np_random, SameStep": (Drift, {"autoreset_mode": "SameStep"}),
    "global generators": (GlobalDrift, {}),
    "a generator nobody knows": (OwnGenerator, {}),
    "tasks": (TaskWorld, {"tasks": lambda slot, episode, stream: slot + 10 * episode + stream.random()}),
    "episode_seeds": (Drift, {"episode_seeds": True}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=1000, help="how many workers to kill in all")
    parser.add_argument("--minutes", type=float, default=None, help="go on for this long instead")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    share = max(10, arguments.kills // 10)
    rows = [notice(share), *back(share)]
    rows += others(seconds=6.0)
    timed = sum(row[2] for row in rows)
    deadline = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    storm_row = storm(max(0, arguments.kills - timed), deadline, arguments.seed)
    table([*rows, storm_row])
    print(f"\n{sum(row[2] for row in [*rows, storm_row])} kills in all")
    return int(any(row[3] is False for row in [*rows, storm_row]))


# ---- time to notice ----


def notice(kills: int) -> tuple[str, str, int, bool]:
    """Time from the kill of a worker that is in the middle of a step to the error in the caller."""
    took = []
    # One worker: a failure is told when all have answered, and the others would be at their step still.
    with stretto.make_vec(lambda: Slow(0.2), 1, backend="process", isolate=True, on_crash="raise") as envs:
        for _ in range(kills):
            envs.reset(seed=0)
            struck = strike_in(envs.worker_pids[0], random.uniform(0.005, 0.05))
            try:
                envs.step(np.zeros(1, int))
            except stretto.WorkerDied:
                took.append(time.perf_counter() - struck())
    return ("a death is noticed", percentiles(took, "s"), kills, bool(np.percentile(took, 99) < NOTICE_BAR))


def strike_in(pid: int, seconds: float) -> Callable[[], float]:
    """Kill a process in a moment; return what says when that was."""
    when: list[float] = []

    def strike() -> None:
        when.append(time.perf_counter())
        os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(seconds, strike)
    timer.start()

    def struck() -> float:
        timer.join()
        return when[0]

    return struck


# ---- time to be back ----


def back(kills: int) -> list[tuple[str, str, int, bool]]:
    """Time by which a death makes a step longer, over the construction of the worlds and the steps replayed."""
    return [_back(kills // 2, slots) for slots in (2, 64)]


def _back(kills: int, slots: int) -> tuple[str, str, int, bool]:
    beyond = []
    with stretto.make_vec("CartPole-v1", slots, backend="process", workers=2, isolate=True) as envs:
        build, step = plain_times(slots // 2)
        envs.reset(seed=0)
        actions = np.zeros(slots, int)
        ordinary = statistics.median(timed(lambda: envs.step(actions)) for _ in range(200))
        for number in range(kills):
            for _ in range(20):
                envs.step((actions + number) % 2)
            replayed = envs.statistics().replayed_steps
            os.kill(envs.worker_pids[number % 2], signal.SIGKILL)
            took = timed(lambda: envs.step(actions))
            replayed = envs.statistics().replayed_steps - replayed
            beyond.append(took - ordinary - build - replayed * step)
    name = f"{slots // 2} CartPoles are back (beyond building and replay)"
    return (name, percentiles(beyond, "s"), kills, bool(np.percentile(beyond, 99) < BACK_BAR))


def plain_times(count: int) -> tuple[float, float]:
    """Return what it takes to build so many CartPoles, and to step one."""
    import gymnasium

    def build() -> list[Any]:
        return [gymnasium.make("CartPole-v1") for _ in range(count)]

    env = build()[0]
    env.reset(seed=0)

    def step() -> None:
        if env.step(0)[2]:
            env.reset()

    return statistics.median(timed(build) for _ in range(5)), statistics.median(timed(step) for _ in range(500))


def timed(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


# ---- the others meanwhile ----


def others(seconds: float) -> list[tuple[str, str, int, bool | None]]:
    """Steps/s of the workers that live, under recv, while another one is killed again and again; worlds that wait."""
    calm, _ = _rate(seconds / 2, every=None)
    stormy, kills = _rate(seconds, every=0.25)
    told = f"{stormy:,.0f} steps/s, {calm:,.0f} undisturbed: {stormy / calm:.0%}"
    return [("the other workers meanwhile, under recv(ready=1)", told, kills, None)]


def _rate(seconds: float, every: float | None) -> tuple[float, int]:
    steps, kills = 0, 0
    layout = {"backend": "process", "workers": 4, "isolate": True, "max_restarts": 1000}
    with stretto.make_vec(lambda: Slow(0.004), 8, **layout) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(8, int))
        began = time.perf_counter()
        next_kill = began + (every or 1e9)
        while (now := time.perf_counter()) < began + seconds:
            ids = envs.recv(ready=1).ids
            steps += int(ids[0] >= 2)  # slots 0 and 1 are the victim's
            envs.send(np.zeros(len(ids), int), ids)
            if now > next_kill:
                next_kill += every or 1e9
                with contextlib.suppress(ProcessLookupError):
                    os.kill(envs.worker_pids[0], signal.SIGKILL)
                    kills += 1
    return steps / seconds, kills


# ---- nothing differs ----


def storm(kills: int, deadline: float | None, seed: int) -> tuple[str, str, int, bool]:
    """Kill at random moments until there were enough; compare every run with an undisturbed one."""
    expected = {name: undisturbed(*setting) for name, setting in SETTINGS.items()}
    done, runs, different = 0, 0, []
    while done < kills if deadline is None else time.monotonic() < deadline:
        for name, (world, options) in SETTINGS.items():
            for transport in ("shared", "message"):
                for by_recv in (False, True):
                    runs += 1
                    told = f"{name}, {transport}, {'recv' if by_recv else 'step'}, seed {seed + runs}"
                    print(f"\r{done} kills, {runs} runs: {told:70}", end="", file=sys.stderr, flush=True)
                    layout = {"backend": "process", "workers": 3, "isolate": True, "max_restarts": 1000}
                    with (
                        stretto.make_vec(world, SLOTS, transport=transport, **layout, **options) as envs,
                        Killer(envs, seed + runs) as killer,
                    ):
                        found = (received if by_recv else stepped)(envs, killer, *expected[name])
                    done += killer.kills
                    if found:
                        different.append(f"{told}: {found}")
    print("\r" + " " * 110 + "\r", end="", file=sys.stderr)
    for one in different:
        print(one)
    name = "runs with kills at random moments that differ"
    return (name, f"{len(different)} of {runs} (of {STEPS} steps of {SLOTS} worlds)", done, not different)


def undisturbed(world: Any, options: dict[str, Any]) -> Any:
    with stretto.make_vec(world, SLOTS, backend="serial", **options) as envs:
        actions = sample_actions(envs, STEPS)
        return play(envs, actions, 9), actions


def stepped(envs: Any, killer: Killer, expected: Any, actions: list[Any]) -> str | None:
    run = play(envs, actions, 9, before_step=lambda number: killer.strike_soon() if number % EVERY == 0 else None)
    return difference(run.moments, expected.moments)


def received(envs: Any, killer: Killer, expected: Any, actions: list[Any]) -> str | None:
    envs.reset(seed=9)
    for number, action in enumerate(actions):
        if number % EVERY == 0:
            killer.strike_soon()
        envs.send(action)
        seen = 0
        while seen < SLOTS:
            part = envs.recv(ready=min(2, SLOTS - seen))
            seen += len(part.ids)
            moment = expected.moments[number + 1]
            for row, slot in enumerate(part.ids):
                got = [np.asarray(values[row]) for values in part[:4]] + [info_of(part.infos, row)]
                wanted = [np.asarray(values[slot]) for values in moment[:4]] + [info_of(moment[4], slot)]
                found = difference(got, wanted)
                if found:
                    return f"step {number}, slot {slot}: {found}"
    return None


# ---- the table ----


def percentiles(values: list[float], unit: str) -> str:
    middle, late = np.percentile(values, [50, 99])
    return f"p50 {middle:.3f} {unit}, p99 {late:.3f} {unit}"


def table(rows: list[tuple[str, str, int, bool | None]]) -> None:
    print(f"{'':52} {'':56} {'kills':>6}  bar")
    for name, told, kills, met in rows:
        print(f"{name:52} {told:56} {kills:6}  {'' if met is None else 'met' if met else 'MISSED'}")


if __name__ == "__main__":
    sys.exit(main())
