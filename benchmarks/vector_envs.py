"""Steps a second of a plain loop, of Stretto and of its peers, on six worlds: python benchmarks/vector_envs.py

Every contestant lives in a process of its own and sleeps while others are measured. Rounds are interleaved: in each,
all contestants have a turn with and without work in the caller between steps, and each is compared with the plain
loop of the same round. The table has medians of these ratios. Real steps are counted: one that only resets is none.
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
from machine import OtherPrograms, describe
from worlds import WORLDS

from stretto.budget import available_cores

WORK_SECONDS = (0.0, 200e-6)
INSTALL = "pip install stable-baselines3 tianshou torchrl minigrid mujoco torch==2.13.0"
PACKAGES = ("stretto", "gymnasium", "numpy", "stable-baselines3", "tianshou", "torchrl", "mujoco", "minigrid")


@dataclass(frozen=True)
class Cell:
    """One contestant on one world: its rates by round, beside those of the plain loop in the same rounds.

    `at_best` compares the two while nothing disturbs either: the quickest tenth of the steps, in the quickest rounds.
    """

    world: str
    contestant: str
    work_seconds: float
    rates: list[float]
    ratios: list[float]
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
class Outcome:
    """All about one world: its cells, who could not run, what each of ours chose, and the cores that others used."""

    cells: list[Cell]
    skipped: list[Skipped]
    choices: dict[str, str]
    busy_cores: float


def measure_world(world: str, names: list[str], options: argparse.Namespace) -> Outcome:
    """Run all rounds on one world."""
    with contextlib.ExitStack() as stack:
        hosts, skipped, choices = _build(world, names, options, stack)
        say(f"{world}: while idle, the contestants together use {100 * _idle_share(hosts):.1f}% of a core")
        others = OtherPrograms([process for host in hosts.values() for process in host.processes()])
        rates: dict[tuple[str, float], list[float]] = {(name, work): [] for name in hosts for work in WORK_SECONDS}
        quick: dict[tuple[str, float], list[float]] = {key: [] for key in rates}
        for number in range(options.rounds + 1):  # the first one warms up, and does not count
            seconds = options.seconds if number else options.seconds / 2
            shift = number % len(names)
            for name in [*names[shift:], *names[:shift]]:
                if name not in hosts:
                    continue
                try:
                    for work in WORK_SECONDS:
                        reply = hosts[name].run(seconds, work, 10 * seconds + options.patience)
                        if number:
                            rates[name, work].append(reply["steps"] / reply["seconds"])
                            quick[name, work].append(reply["quick"])
                except HostFailed as error:
                    skipped.append(Skipped(world, name, str(error)))
                    hosts.pop(name).close()
                    say(f"{world}: {name} is out, {error}")
            say(f"{world}: {'warm-up' if not number else f'round {number} of {options.rounds}'} done")
        busy = others.cores()
        say(f"{world}: other programs used {busy:.2f} cores meanwhile")
    if PLAIN not in hosts:
        return Outcome([], skipped, choices, busy)
    cells = [
        Cell(
            world,
            name,
            work,
            rates[name, work],
            _paired(rates[name, work], rates[PLAIN, work]),
            _low(quick[PLAIN, work]) / _low(quick[name, work]),
        )
        for name in hosts
        for work in WORK_SECONDS
    ]
    return Outcome(cells, skipped, choices, busy)


def _build(
    world: str, names: list[str], options: argparse.Namespace, stack: contextlib.ExitStack
) -> tuple[dict[str, Host], list[Skipped], dict[str, str]]:
    hosts, skipped, choices = {}, [], {}
    for name in names:
        host = stack.enter_context(Host(name, world, options.num_envs))
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


def _paired(rates: list[float], plain: list[float]) -> list[float]:
    return [rate / base for rate, base in zip(rates, plain, strict=True)]


def print_table(cells: list[Cell], cores: int) -> None:
    """Print one line a contestant and world: both cells side by side."""
    by_key = {(cell.world, cell.contestant, cell.work_seconds): cell for cell in cells}
    print(f"{'':36}  {'no work in the caller':^37}  {'200 µs of it after each step':^37}")
    head = f"{'steps/s':>9} {'x plain':>13} {'share':>5} {'at best':>7}"
    print(f"{'world':14}{'contestant':22}  {head}  {head}")
    world = None
    for cell in cells:
        if cell.work_seconds:
            continue
        both = [by_key[cell.world, cell.contestant, work] for work in WORK_SECONDS]
        figures = "  ".join(
            f"{median(one.rates):9,.0f} {median(one.ratios):6.2f} ±{one.spread:5.2f} {median(one.ratios) / cores:5.0%} "
            f"{one.at_best:7.2f}"
            for one in both
        )
        print(f"{cell.world if cell.world != world else '':14}{cell.contestant:22}  {figures}")
        world = cell.world
    print("\nx plain: median of the ratios to the plain loop in the same round, ± half their interquartile range")
    print(f"share: of {cores} cores x plain loop; '{AUTO_COPY}' has copy=True, the others overwrite batches")
    print(
        "at best: x plain while nothing disturbs: the quickest tenth of the steps, in the quickest tenth of the rounds"
    )
    print(f"'{LIMIT}': independent loops, each with work of its own; '{LOCKSTEP}': the same, each waiting for the")
    print("others after every step: the most that stepping all worlds together can give on this machine")


def print_bars(cells: list[Cell], num_envs: int) -> bool:
    """Print whether `auto` is as fast as it must be; return whether it is everywhere."""
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
        ratio = median(cell.ratios)
        met_all &= ratio >= least
        work = ", 200 µs of work" if cell.work_seconds else ""
        print(
            f"  {'met   ' if ratio >= least else 'MISSED'} {ratio:5.2f} >= {least:.2f}  "
            f"{cell.world} ({step_seconds * 1e6:.0f} µs a step{work}), {cell.contestant}"
        )
    return met_all


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
    return worlds, [PLAIN, *(name for name in names if name != PLAIN)]


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--num-envs", "--envs", type=int, default=64, help="environments of each contestant (default: 64)")
    add("--rounds", type=int, default=21, help="rounds that count (default: 21)")
    add("--seconds", type=float, default=0.2, help="seconds a contestant, world and kind of work (default: 0.2)")
    names = {"nargs": "+", "metavar": "NAME"}
    add("--worlds", choices=list(WORLDS), default=list(WORLDS), help=", ".join(WORLDS), **names)
    add("--contestants", choices=list(ENTRIES), default=list(ENTRIES), help=", ".join(ENTRIES), **names)
    add("--build-seconds", type=float, default=90.0, help="who is not ready by then is left out (default: 90)")
    add("--patience", type=float, default=10.0, help="who is so many seconds late is out (default: 10)")
    add("--json", type=Path, metavar="FILE", help="also write every single figure here")
    return parser.parse_args()


def main() -> None:
    """Measure, print the table, and say which bars were met."""
    options = parse()
    worlds, names = present(options)
    machine, cores = describe(*PACKAGES), available_cores()
    outcomes = {world: measure_world(world, names, options) for world in worlds}
    cells = [cell for outcome in outcomes.values() for cell in outcome.cells]
    print(f"{machine}; {options.num_envs} environments, {options.rounds} rounds of {options.seconds:g} s\n")
    print_table(cells, cores)
    for world, outcome in outcomes.items():
        for one in outcome.skipped:
            print(f"no figure for {one.contestant} on {world}: {one.reason}")
        if AUTO in outcome.choices:
            print(f"auto on {world}: {outcome.choices[AUTO]}")
    met = print_bars(cells, options.num_envs)
    busy = max((outcome.busy_cores for outcome in outcomes.values()), default=0.0)
    noisy = "; figures are noisy, and low: do not trust them" if busy > 0.1 * cores else ""
    print(f"Other programs used up to {busy:.2f} of {cores} cores meanwhile{noisy}.")
    if options.json:
        worlds_found = {world: asdict(outcome) for world, outcome in outcomes.items()}
        record = {"machine": machine, "cores": cores, "all_met": met, "worlds": worlds_found}
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
        sys.exit(0)
    say("interrupted")
    sys.exit(130)
