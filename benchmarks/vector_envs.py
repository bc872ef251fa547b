"""Steps a second of a plain loop, of Stretto and of its peers, on six worlds: python benchmarks/vector_envs.py

Every contestant lives in a process of its own and sleeps while others are measured. Rounds are interleaved: in each,
all contestants have a turn with and without work in the caller between steps. The plain loop has one before and after
each of them, because the machine may be twice as fast a second later, and what is compared is with the mean of those
two. The table has medians of these ratios. Real steps are counted: one that only resets is none.

Where a machine is shared with others, its cores are at full speed only now and then. Before and after every turn a
probe on each core counts for 3 ms; the column "idle" has only those turns in which all cores were at full speed both
times. Which those are does not depend on how a contestant did.
Progress goes to stderr. --help lists the options.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

from contestants import AUTO, AUTO_COPY, ENTRIES, LIMIT, LOCKSTEP, PLAIN
from hosts import Host, HostFailed
from machine import CoreProbes, OtherPrograms, describe
from worlds import WORLDS

from stretto.budget import available_cores

BEFORE = ", before"
"""How the names of contestants end that run in the other checkout."""

WORK_SECONDS = (0.0, 200e-6)
IDLE_SHARE, LEAST_IDLE_TURNS = 0.88, 5
WARM_UP_SECONDS = 1.0
INSTALL = "pip install stable-baselines3 tianshou torchrl minigrid mujoco torch==2.13.0"
PACKAGES = ("stretto", "gymnasium", "numpy", "stable-baselines3", "tianshou", "torchrl", "mujoco", "minigrid")


@dataclass(frozen=True)
class Cell:
    """One contestant on one world: its rates by round, and their ratios to the plain loop just before and after.

    `idle` is the ratio of medians over those turns in which the cores were at full speed, `idle_turns` how many the
    contestant had of them. `at_best` compares the two while nothing disturbs either: the quickest tenth of the steps,
    in the quickest rounds.
    """

    world: str
    contestant: str
    work_seconds: float
    rates: list[float]
    ratios: list[float]
    idle: float | None
    idle_turns: int
    at_best: float

    @property
    def spread(self) -> float:
        """Half of the distance between the quartiles of the ratios."""
        if len(self.ratios) < 2:
            return 0.0
        low, _, high = quantiles(self.ratios, n=4, method="inclusive")
        return (high - low) / 2


@dataclass(frozen=True)
class Skipped:
    """A contestant that could not run on a world, and why."""

    world: str
    contestant: str
    reason: str


@dataclass(frozen=True)
class Turn:
    """One contestant's turn: how fast the cores were; by kind of work, its rate, its seconds a step while undisturbed,
    and ratios to others.
    """

    speed: float
    rates: list[float]
    quick: list[float]
    ratios: list[float]

    def beside(self, before: Turn, after: Turn) -> Turn:
        """Compare with the turns just before and after."""
        plain = [(one + other) / 2 for one, other in zip(before.rates, after.rates, strict=True)]
        ratios = [rate / base for rate, base in zip(self.rates, plain, strict=True)]
        return Turn(self.speed, self.rates, self.quick, ratios)


@dataclass(frozen=True)
class Outcome:
    """All about one world: everybody's turns, who could not run, what each of ours chose, what cores others used."""

    turns: dict[str, list[Turn]]
    skipped: list[Skipped]
    choices: dict[str, str]
    busy_cores: float


def measure_world(world: str, names: list[str], options: argparse.Namespace, probes: CoreProbes) -> Outcome:
    """Run all rounds on one world."""
    with contextlib.ExitStack() as stack:
        hosts, skipped, choices = _build(world, names, options, stack)
        say(f"{world}: while idle, the contestants together use {100 * _idle_share(hosts):.1f}% of a core")
        ours = [process for host in hosts.values() for process in host.processes()]
        others = OtherPrograms([*ours, *probes.processes()])
        turns: dict[str, list[Turn]] = {name: [] for name in hosts}
        for number in range(options.rounds + 1):  # the first one warms up, and does not count
            seconds = options.seconds if number else WARM_UP_SECONDS
            before = _turn(hosts[PLAIN], seconds, options, probes) if PLAIN in hosts else None
            shift = number % len(names)
            for name in [*names[shift:], *names[:shift]]:
                if name not in hosts or before is None or name == PLAIN:
                    continue
                try:
                    turn = _turn(hosts[name], seconds, options, probes)
                except HostFailed as error:
                    skipped.append(Skipped(world, name, str(error)))
                    hosts.pop(name).close()
                    del turns[name]
                    say(f"{world}: {name} is out, {error}")
                    continue
                after = _turn(hosts[PLAIN], seconds, options, probes)
                if number:
                    turns[name].append(turn.beside(before, after))
                    turns[PLAIN].append(after.beside(after, after))
                before = after
            say(f"{world}: {'warm-up' if not number else f'round {number} of {options.rounds}'} done")
        busy = others.cores()
        say(f"{world}: other programs used {busy:.2f} cores meanwhile")
    return Outcome(turns, skipped, choices, busy)


def _turn(host: Host, seconds: float, options: argparse.Namespace, probes: CoreProbes) -> Turn:
    before = probes.slowest()
    patience = 10 * seconds + options.patience
    replies = [host.run(seconds, work, timeout_seconds=patience) for work in WORK_SECONDS]
    speed = min(before, probes.slowest())
    rates = [reply["steps"] / reply["seconds"] for reply in replies]
    return Turn(speed, rates, [reply["quick"] for reply in replies], [])


def cells_of(world: str, outcome: Outcome, full_speed: float) -> list[Cell]:
    """Return what the table shows of a world; `full_speed` is what a probe counts on a core that nobody else uses."""
    plain = outcome.turns.get(PLAIN)
    if not plain:
        return []
    cells = []
    for name, turns in outcome.turns.items():
        for n, work in enumerate(WORK_SECONDS):
            idle = [turn.rates[n] for turn in turns if turn.speed > IDLE_SHARE * full_speed]
            idle_plain = [turn.rates[n] for turn in plain if turn.speed > IDLE_SHARE * full_speed]
            cells.append(
                Cell(
                    world,
                    name,
                    work,
                    [turn.rates[n] for turn in turns],
                    [turn.ratios[n] for turn in turns],
                    median(idle) / median(idle_plain) if idle and idle_plain else None,
                    min(len(idle), len(idle_plain)),
                    _low([turn.quick[n] for turn in plain]) / _low([turn.quick[n] for turn in turns]),
                )
            )
    return cells


def _build(
    world: str, names: list[str], options: argparse.Namespace, stack: contextlib.ExitStack
) -> tuple[dict[str, Host], list[Skipped], dict[str, str]]:
    hosts, skipped, choices = {}, [], {}
    for name in names:
        checkout = options.before if name.endswith(BEFORE) else None
        arguments = name.removesuffix(BEFORE), world, str(options.num_envs)
        host = stack.enter_context(Host(*arguments, checkout=checkout))
        began = time.monotonic()
        try:
            choice = host.build(options.build_seconds).get("choice")
        except HostFailed as error:
            host.close()
            skipped.append(Skipped(world, name, str(error)))
            say(f"{world}: {name} cannot run, {error}")
            continue
        hosts[name] = host
        if choice:
            choices[name] = choice
        say(f"{world}: {name} is ready after {time.monotonic() - began:.1f} s")
    return hosts, skipped, choices


def _idle_share(hosts: dict[str, Host], seconds: float = 0.5) -> float:
    """Return how many cores all contestants use while nobody asks anything of them."""
    processes = [process for host in hosts.values() for process in host.processes()]

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds


def _low(values: list[float]) -> float:
    return sorted(values)[len(values) // 10]


def print_table(cells: list[Cell], cores: int) -> None:
    """Print one line a contestant and world: both cells side by side."""
    by_key = {(cell.world, cell.contestant, cell.work_seconds): cell for cell in cells}
    print(f"{'':36}  {'no work in the caller':^48}  {'200 µs of it after each step':^48}")
    head = f"{'steps/s':>9} {'x plain':>13} {'share':>5} {'idle':>10} {'at best':>7}"
    print(f"{'world':14}{'contestant':22}  {head}  {head}")
    world = None
    for cell in cells:
        if cell.work_seconds:
            continue
        both = [by_key[cell.world, cell.contestant, work] for work in WORK_SECONDS]
        figures = "  ".join(
            f"{median(one.rates):9,.0f} {median(one.ratios):6.2f} ±{one.spread:5.2f} {median(one.ratios) / cores:5.0%} "
            f"{_idle(one):>10} {one.at_best:7.2f}"
            for one in both
        )
        print(f"{cell.world if cell.world != world else '':14}{cell.contestant:22}  {figures}")
        world = cell.world
    print("\nx plain: median of the ratios to the plain loop just before and after, ± half their interquartile range")
    print(f"share: of {cores} cores x plain loop; those with 'copies' have copy=True, the others overwrite batches")
    print("idle: x plain in the turns before and after which all cores were at full speed (how many of them)")
    print(
        "at best: x plain while nothing disturbs: the quickest tenth of the steps, in the quickest tenth of the rounds"
    )
    print(f"'{LIMIT}': independent loops, each with work of its own; '{LOCKSTEP}': the same, each waiting for the")
    print("others after every step: the most that stepping all worlds together can give on this machine")


def _idle(cell: Cell) -> str:
    return "-" if cell.idle is None else f"{cell.idle:.2f} ({cell.idle_turns:2})"


def print_bars(cells: list[Cell], num_envs: int) -> bool:
    """Print whether `auto` is as fast as it must be; return whether it is everywhere.

    The bars are for idle cores: where there were enough turns with such, these count.
    """
    print(f"\nWhat auto must reach, on 2 otherwise idle cores, with {num_envs} environments:")
    rates = {c.world: median(c.rates) for c in cells if c.contestant == PLAIN and not c.work_seconds}
    met_all = True
    for cell in cells:
        if cell.contestant != AUTO and (cell.contestant != AUTO_COPY or cell.work_seconds):
            continue
        step_seconds = 1 / rates[cell.world]
        least = WORLDS[cell.world].least_ratio or (1.8 if step_seconds >= 30e-6 else 0.95)
        if cell.work_seconds:
            least = 0.95  # never slower than the plain loop
        idle = cell.idle if cell.idle_turns >= LEAST_IDLE_TURNS else None
        ratio = median(cell.ratios) if idle is None else idle
        met_all &= ratio >= least
        work = ", 200 µs of work" if cell.work_seconds else ""
        when = "over all turns" if idle is None else f"idle; over all turns {median(cell.ratios):.2f}"
        print(
            f"  {'met   ' if ratio >= least else 'MISSED'} {ratio:5.2f} >= {least:.2f}  "
            f"{cell.world} ({step_seconds * 1e6:.0f} µs a step{work}), {cell.contestant} ({when})"
        )
    return met_all


def print_beside(cells: list[Cell]) -> None:
    """Print how fast this checkout is beside the other one, if there is one: medians of the ratios of rounds."""
    by_key = {(cell.world, cell.contestant, cell.work_seconds): cell for cell in cells}
    for (world, name, work), cell in by_key.items():
        before = by_key.get((world, name + BEFORE, work))
        if before is not None:
            pairs = zip(cell.ratios, before.ratios, strict=False)
            ratio = median(ours / theirs for ours, theirs in pairs)
            best = cell.at_best / before.at_best
            print(f"{name} on {world}, {work * 1e6:.0f} µs of work: {ratio:.3f} of before, at best {best:.3f}")


def present(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the worlds and contestants that were asked for and are installed; say how to install the others."""
    missing = set()

    def installed(package: str | None) -> bool:
        there = package is None or importlib.util.find_spec(package) is not None
        if not there and package is not None:
            missing.add(package)
        return there

    worlds = [name for name in options.worlds if installed(WORLDS[name].package)]
    names = [name for name in options.contestants if installed(ENTRIES[name].package)]
    if missing:
        say(f"not installed, and left out: {', '.join(sorted(missing))}; to have them: {INSTALL}")
    if options.before is not None:
        names += [name + BEFORE for name in names if ENTRIES[name].package == "stretto"]
    return worlds, [PLAIN, *(name for name in names if name != PLAIN)]


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--num-envs", "--envs", type=int, default=64, help="environments of each contestant (default: 64)")
    add("--rounds", type=int, default=15, help="rounds that count (default: 15)")
    add("--seconds", type=float, default=0.2, help="seconds a contestant, world and kind of work (default: 0.2)")
    names = {"nargs": "+", "metavar": "NAME"}
    add("--worlds", choices=list(WORLDS), default=list(WORLDS), help=", ".join(WORLDS), **names)
    add("--contestants", choices=list(ENTRIES), default=list(ENTRIES), help=", ".join(ENTRIES), **names)
    add("--build-seconds", type=float, default=90.0, help="who is not ready by then is left out (default: 90)")
    add("--patience", type=float, default=10.0, help="who is so many seconds late is out (default: 10)")
    add("--before", type=Path, metavar="FOLDER", help="another checkout, whose Stretto runs beside this one")
    add("--json", type=Path, metavar="FILE", help="also write every single figure here")
    return parser.parse_args()


def main() -> None:
    """Measure, print the table, and say which bars were met."""
    options = parse()
    worlds, names = present(options)
    machine, cores = describe(*PACKAGES), available_cores()
    probes = CoreProbes()
    outcomes = {world: measure_world(world, names, options, probes) for world in worlds}
    speeds = sorted(turn.speed for outcome in outcomes.values() for some in outcome.turns.values() for turn in some)
    full_speed = speeds[-max(1, len(speeds) // 100)] if speeds else 0.0
    cells = [cell for world, outcome in outcomes.items() for cell in cells_of(world, outcome, full_speed)]
    print(f"{machine}; {options.num_envs} environments, {options.rounds} rounds of {options.seconds:g} s\n")
    print_table(cells, cores)
    for world, outcome in outcomes.items():
        for one in outcome.skipped:
            print(f"no figure for {one.contestant} on {world}: {one.reason}")
        if AUTO in outcome.choices:
            print(f"auto on {world}: {outcome.choices[AUTO]}")
    print_beside(cells)
    met = print_bars(cells, options.num_envs)
    busy = max((outcome.busy_cores for outcome in outcomes.values()), default=0.0)
    noisy = "; figures are noisy, and low: do not trust them" if busy > 0.1 * cores else ""
    print(f"Other programs used up to {busy:.2f} of {cores} cores meanwhile{noisy}.")
    if options.json:
        worlds_found = {world: asdict(outcome) for world, outcome in outcomes.items()}
        shown = [asdict(cell) for cell in cells]
        record = {"machine": machine, "cores": cores, "all_met": met, "cells": shown, "worlds": worlds_found}
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
        sys.exit(0)
    say("interrupted")
    sys.exit(130)
