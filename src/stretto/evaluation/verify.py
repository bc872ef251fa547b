"""verify: play the same episodes in several ways, and say where two of them part, if they do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.core import SIMULTANEOUS
from stretto.evaluation.plan import Plan, PlaySettings, entries_of
from stretto.evaluation.playing.scheduler import Scheduler
from stretto.evaluation.report.wording import counted
from stretto.missions.resolve import find_missions
from stretto.missions.tasks import Tasks
from stretto.policies.spec import find_policies
from stretto.workers.backends import PROCESS, SERIAL


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compute a plan."""

    jobs: int
    strategy: str
    reverse: bool = False

    def __str__(self) -> str:
        where = "in one process" if not self.jobs else counted(self.jobs, "job")
        return f"{where}, {self.strategy}" + (", in reverse order" if self.reverse else "")


WAYS = (
    Way(0, "sequential"),
    Way(0, "sequential"),
    Way(1, "batched"),
    Way(2, "sequential", reverse=True),
    Way(3, "batched"),
    Way(1, "processes"),
    Way(1, "threads"),
)
"""The first two are the same: what differs between them is not reproducible at all."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it: `differences` has a sentence for every way that parted from the first one.

    `failed` are the episodes that failed in any way, and `failure` says why the first of them did.
    """

    ways: tuple[str, ...]
    episodes: int
    steps: int
    differences: tuple[str, ...]
    failed: int = 0
    failure: str | None = None

    @property
    def same(self) -> bool:
        """Whether all ways gave the same."""
        return not self.differences


def verify(  # noqa: PLR0913  every choice has a name and a default here
    missions: Any,
    policies: Any,
    *,
    episodes: int = 3,
    steps: int | None = 200,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    variants: Sequence[str] = (),
    cogs: int | None = None,
    map_seed: int | None = None,
    mix: bool = False,
    turns: str = SIMULTANEOUS,
    tasks: Tasks | None = None,
    on_way: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Say where worlds or policies are not reproducible; all arguments are as for `evaluate`.

    The same episodes are played in several ways, each of which `on_way` hears of, and are compared bit by bit.
    """
    found = find_missions(missions, env_kwargs=env_kwargs, variants=variants, cogs=cogs, map_seed=map_seed)
    entries = entries_of(find_policies(policies), mix=mix)
    return verify_plan(Plan(tuple(found), entries, episodes, seed, steps, turns, episode_tasks=tasks), on_way=on_way)


def verify_plan(plan: Plan, ways: Sequence[Way] = WAYS, on_way: Callable[[str], None] = lambda _: None) -> Verdict:
    """Play all episodes in each way, and compare every observation, action and reward bit by bit."""
    first: Scheduler | None = None
    differences = []
    failures: dict[tuple[int, int, int], str] = {}
    for way in ways:
        on_way(str(way))
        run = _run(plan, way)
        for key, record in run.records.items():
            if record.failure is not None:
                where = f"{record.mission}, {record.label}, episode {record.episode}"
                failures.setdefault(key, f"{where}: {record.failure.message}")
        if first is None:
            first = run
        elif (difference := _parting(first, run)) is not None:
            differences.append(f"{way}: {difference}")
    assert first is not None
    total = sum(record.steps for record in first.records.values())
    why = failures[min(failures)] if failures else None
    return Verdict(tuple(map(str, ways)), len(first.records), total, tuple(differences), len(failures), why)


def _run(plan: Plan, way: Way) -> Scheduler:
    settings = PlaySettings(strategy=way.strategy, keep_digests=True)
    with Scheduler(plan, settings, PROCESS if way.jobs else SERIAL, max(1, way.jobs)) as run:
        tasks = plan.tasks(run.look())
        run.play(reversed(tasks) if way.reverse else tasks, cores=2)
    return run


def _parting(one: Scheduler, other: Scheduler) -> str | None:
    """Say where two runs part first, and whose doing that seems to be."""
    for key in sorted(one.records):
        a, b = (dataclasses.replace(run.records[key], timing={}) for run in (one, other))
        steps = list(zip(one.digests[key], other.digests[key], strict=False))
        where = f"{a.mission}, {a.label}, episode {a.episode}"
        for done, (ours, theirs) in enumerate(steps):
            seen = f"{where}, step {done}" if done else f"{where}, reset"
            if list(ours) != list(theirs):
                return f"{seen}: other agents act: the world is not reproducible"
            for agent in ours:
                if ours[agent][0] != theirs[agent][0]:
                    whose = "steps" if done else "resets"
                    return f"{seen}: agent {agent} sees something else: the world {whose} differently"
                now = f"{where}, step {done + 1}: agent {agent}"
                if ours[agent][1] != theirs[agent][1]:
                    return f"{now} saw the same and acts differently: its policy does"
                if repr(ours[agent][2]) != repr(theirs[agent][2]):  # by its digits: NaN differs from itself
                    return f"{now} did the same and is rewarded differently: the world does"
        if a != b:
            names = [f.name for f in dataclasses.fields(a) if getattr(a, f.name) != getattr(b, f.name)]
            return f"{where}: the same steps, and other {' and '.join(names)}"
    return None
