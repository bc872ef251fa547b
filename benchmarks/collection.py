"""Rollouts a second of a plain loop, of Stretto, of the barrier scheme and of peers: python benchmarks/collection.py

Everybody collects the same number of whole rollouts, again and again: of worlds of four costs, with even lengths and
steps or uneven ones, with a policy that costs nothing and one that costs as much as the world. Every contestant lives in
a process of its own and sleeps while others are measured. Rounds are interleaved, and ratios are taken within a round.
Rollouts are counted by their work, because peers draw lengths of their own.

Everybody keeps worlds and processes between collections, ours by `open_collection`. Only `stretto auto, first call` is a
whole call of `collect`, with all that it starts and checks; no bar is about it. On a shared machine look at "CPU" as
well: the time that all processes of a contestant computed for its work, over that of the plain loop. Progress goes to
stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles

import collectors
import psutil
from collectors import (
    AUTO,
    AUTO_BLOCK,
    ENTRIES,
    LIMIT,
    LOCKSTEP,
    LOCKSTEP_BLOCK,
    PEERS,
    PLAIN,
    READY_FIRST,
    READY_FIRST_BLOCK,
    WHOLE,
    Setting,
)
from hosts import Host, HostFailed
from machine import OtherPrograms, describe

from stretto.budget import available_cores

WORLDS = {"7 µs": (7e-6, 0.0), "100 µs": (100e-6, 0.0), "1 ms": (1e-3, 0.0), "sleeps 1 ms": (0.0, 1e-3)}
"""The seconds for which a step computes, and those for which it sleeps."""

SHAPES = {"even": (False, False), "uneven lengths": (True, False), "uneven steps": (False, True)}
POLICIES = {"free": 0.0, "costly": 1.0}
INSTALL = "pip install tianshou torchrl torch==2.13.0"
PACKAGES = ("stretto", "gymnasium", "numpy", "tianshou", "torchrl", "torch")
LEAST_ROLLOUTS_A_SLOT = 4


@dataclass(frozen=True)
class Cell:
    """What is collected, under its names in the table."""

    world: str
    shape: str
    policy: str

    def __str__(self) -> str:
        return f"{self.world}, {self.shape}, {self.policy} policy"

    @property
    def step_seconds(self) -> float:
        """What an ordinary step of world and policy takes."""
        return sum(WORLDS[self.world]) * (1 + POLICIES[self.policy])

    def setting(self, turn_seconds: float, bare_seconds: float, num_envs: int) -> Setting:
        """Return it as contestants are told; a turn of a loop and a step without work take so long."""
        computes, sleeps = WORLDS[self.world]
        policy = POLICIES[self.policy] * max(computes, sleeps)
        loops = round(max(0.0, computes - bare_seconds) / turn_seconds)
        return Setting(loops, sleeps, round(policy / turn_seconds), *SHAPES[self.shape], num_envs)


@dataclass(frozen=True)
class Turn:
    """One contestant's collection: mean rollouts a second, the seconds that it computed for one, cores others used."""

    rate: float
    cpu: float
    others: float


@dataclass
class Outcome:
    """All about one cell: turns by contestant and round, who could not run and why, what ours chose."""

    cell: Cell
    rollouts: int
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)

    def ratios(self, name: str, base: str, of: Callable[[Turn], float] = lambda turn: turn.rate) -> list[float]:
        """Return how one compares with another, round by round."""
        pairs = zip(self.turns.get(name, ()), self.turns.get(base, ()), strict=False)
        return [of(one) / of(other) for one, other in pairs]

    def at_best(self, name: str, base: str) -> float:
        """Compare the best rounds of both."""
        return max(turn.rate for turn in self.turns[name]) / max(turn.rate for turn in self.turns[base])

    def best_of(self, family: str) -> str | None:
        """Return the fastest contestant of a family."""
        rates = {name: median(t.rate for t in ts) for name, ts in self.turns.items() if ENTRIES[name].family == family}
        return max(rates, key=lambda name: rates[name]) if rates else None


def measure(cell: Cell, names: Sequence[str], calibration: tuple[float, float], options: argparse.Namespace) -> Outcome:
    """Run all rounds of one cell."""
    setting = cell.setting(*calibration, options.num_envs)
    count = round(options.seconds / (cell.step_seconds * setting.mean_work))
    outcome = Outcome(cell, max(LEAST_ROLLOUTS_A_SLOT * options.num_envs, count))
    patience = options.patience + 20 * outcome.rollouts * cell.step_seconds * setting.mean_work
    with contextlib.ExitStack() as stack:
        hosts: dict[str, Host] = {}
        for name in names:
            host = stack.enter_context(Host(name, json.dumps(asdict(setting)), script=collectors.__file__))
            with _left_out(outcome, hosts, name):
                outcome.choices[name] = host.build(options.build_seconds).get("choice") or ""
                hosts[name] = host
                host.run(options.num_envs, timeout_seconds=patience)  # the first one warms up, and does not count
        outcome.turns = {name: [] for name in hosts}
        for number in range(options.rounds):
            shift = number % len(names)
            for name in [*names[shift:], *names[:shift]]:
                if name in hosts:
                    with _left_out(outcome, hosts, name):
                        outcome.turns[name].append(_turn(hosts[name], outcome.rollouts, setting.mean_work, patience))
            say(f"{cell}: round {number + 1} of {options.rounds} done")
    return outcome


@contextlib.contextmanager
def _left_out(outcome: Outcome, hosts: dict[str, Host], name: str) -> Iterator[None]:
    """Leave a contestant out that fails."""
    try:
        yield
    except HostFailed as error:
        outcome.skipped[name] = str(error)
        outcome.turns.pop(name, None)
        if name in hosts:
            hosts.pop(name).close()
        say(f"{outcome.cell}: {name} is out, {error}")


def _turn(host: Host, rollouts: int, mean_work: float, patience: float) -> Turn:
    others, before = OtherPrograms(host.processes()), _computed(host)
    reply = host.run(rollouts, timeout_seconds=patience)
    done = reply["work"] / mean_work  # in rollouts of mean work
    return Turn(done / reply["seconds"], (_computed(host) - before) / done, others.cores())


def _computed(host: Host) -> float:
    """Return for how long a contestant's processes have computed, those that it has ended included."""
    seconds = 0.0
    for process in host.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:4])
    return seconds


# ---- what is printed ----


def interval(values: Sequence[float]) -> str:
    """Write a median and the quartiles around it."""
    if len(values) < 2:
        return f"{median(values):.2f}" if values else "-"
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def print_table(outcome: Outcome) -> None:
    """Print one line a contestant."""
    print(f"\n### {outcome.cell}: {outcome.rollouts} rollouts\n")
    print("| contestant | rollouts/s | x plain loop | of a plain loop a core | at best | CPU | others' cores |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, turns in outcome.turns.items():
        figures = [
            f"{median(turn.rate for turn in turns):,.1f}",
            interval(outcome.ratios(name, PLAIN)),
            interval(outcome.ratios(name, LIMIT)),
            f"{outcome.at_best(name, LIMIT):.2f}" if LIMIT in outcome.turns else "-",
            interval(outcome.ratios(name, PLAIN, lambda turn: turn.cpu)),
            f"{median(turn.others for turn in turns):.1f}",
        ]
        print(f"| {name} | {' | '.join(figures)} |")
    for name, reason in outcome.skipped.items():
        print(f"\nno figure for {name}: {reason}")


@dataclass(frozen=True)
class Bar:
    """Who must be how fast, over whom."""

    name: str
    base: str
    least: float
    why: str


def bars_of(outcome: Outcome) -> list[Bar]:
    """Return what must hold in a cell."""
    cell, bars = outcome.cell, []
    bars.append(Bar(AUTO, PLAIN, 0.95, "never slower than the plain loop"))
    computes = WORLDS[cell.world][0]
    if computes >= 100e-6 and cell.shape == "even" and cell.policy == "free":
        bars.append(Bar(AUTO, LIMIT, 0.9, "a plain loop a core"))
    if computes and cell.shape != "even":
        bars.append(Bar(AUTO, LIMIT, 0.85, "total work / cores"))
    if computes >= 100e-6 and cell.policy == "costly":
        bars.append(Bar(READY_FIRST, LOCKSTEP, 1.2, "overlap"))
        bars.append(Bar(READY_FIRST_BLOCK, LOCKSTEP_BLOCK, 1.2, "overlap"))
    rivals = [(family, outcome.best_of(family)) for family in PEERS]
    ways = [(AUTO, (WHOLE, LOCKSTEP, READY_FIRST)), (AUTO_BLOCK, (LOCKSTEP_BLOCK, READY_FIRST_BLOCK))]
    bars += [Bar(auto, way, 0.95, "the best of its ways") for auto, others in ways for way in others]
    bars += [Bar(AUTO, best, 1.0, f"ahead of the best of {family}") for family, best in rivals if best is not None]
    return [bar for bar in bars if outcome.turns.get(bar.name) and outcome.turns.get(bar.base)]


def print_bars(outcomes: Sequence[Outcome]) -> bool:
    """Print which bars are met; return whether all are."""
    print("\n### Bars\n")
    print("| | cell | who | over | least | median [quartiles] | at best |")
    print("|---|---|---|---|---:|---:|---:|")
    all_met = True
    for outcome in outcomes:
        for bar in bars_of(outcome):
            ratios = outcome.ratios(bar.name, bar.base)
            met = median(ratios) >= bar.least
            all_met &= met
            best = outcome.at_best(bar.name, bar.base)
            row = outcome.cell, bar.name, f"{bar.base} ({bar.why})", bar.least, interval(ratios), f"{best:.2f}"
            print(f"| {'met' if met else 'MISSED'} | {' | '.join(map(str, row))} |")
    return all_met


# ---- the command ----


def present(names: Sequence[str]) -> list[str]:
    """Return the contestants that are installed; say how to install the others."""
    packages = {ENTRIES[name].package for name in names} - {None}
    missing = {package for package in packages if importlib.util.find_spec(str(package)) is None}
    if missing:
        say(f"not installed, and left out: {', '.join(sorted(map(str, missing)))}; to have them: {INSTALL}")
    found = [name for name in names if ENTRIES[name].package not in missing]
    return [PLAIN, LIMIT, *(name for name in found if name not in (PLAIN, LIMIT))]


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--num-envs", type=int, default=16, help="environments of each contestant that has several (default: 16)")
    add("--rounds", type=int, default=5, help="rounds (default: 5)")
    add("--seconds", type=float, default=6.0, help="what a plain loop takes for a collection (default: 6)")
    for name, choices in (("worlds", WORLDS), ("shapes", SHAPES), ("policies", POLICIES), ("contestants", ENTRIES)):
        add(
            f"--{name}",
            nargs="+",
            metavar="NAME",
            choices=list(choices),
            default=list(choices),
            help="; ".join(choices),
        )
    add("--build-seconds", type=float, default=90.0, help="who is not ready by then is left out (default: 90)")
    add("--patience", type=float, default=30.0, help="who is so many seconds late is out (default: 30)")
    add("--json", type=Path, metavar="FILE", help="also write every single figure here")
    return parser.parse_args()


def main() -> int:
    """Measure, print the tables, and say which bars were met."""
    options = parse()
    names, calibration = present(options.contestants), collectors.calibrate()
    cells = [Cell(w, s, p) for w in options.worlds for s in options.shapes for p in options.policies]
    cores = available_cores()
    print(f"{describe(*PACKAGES)}; {options.num_envs} environments, {options.rounds} rounds")
    outcomes = []
    for cell in cells:
        outcomes.append(measure(cell, names, calibration, options))
        print_table(outcomes[-1])
        sys.stdout.flush()
    met = print_bars(outcomes)
    busy = median(turn.others for one in outcomes for turns in one.turns.values() for turn in turns)
    noisy = "; figures are noisy, and low" if busy > 0.1 * cores else ""
    print(f"\nOther programs used {busy:.2f} of {cores} cores meanwhile (median){noisy}.")
    if options.json:
        record = {"machine": describe(*PACKAGES), "cores": cores, "cells": [asdict(one) for one in outcomes]}
        options.json.write_text(json.dumps(record, indent=1))
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
