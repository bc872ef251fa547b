"""The plan of an evaluation: everything that a result depends on, fixed before the first episode is played."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import numpy as np

from stretto.core import SIMULTANEOUS, WAYS_TO_PLAY_TURNS, AgentId
from stretto.episode_steps import EpisodePlan, TimeLimits
from stretto.errors import UsageError
from stretto.missions.mission import Mission
from stretto.missions.tasks import Tasks, check_tasks, task_of
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.spec import PolicySpec
from stretto.seeding import GLOBAL_GENERATORS, SeedTree

LOCKSTEP_ROWS = 16
"""About how many agents a batch has, where a policy can act for several at once: as many episodes are played in step."""

MOST_ROWS = 64

_MOST_GROUPS = 10_000
"""Of so many groups of policies at most, each plays in its turn; of more, some are drawn."""

HANG_SECONDS = 60.0
"""How long a step may take, of the world or of all agents together, before it counts as hung."""

_USUAL_LIMITS = TimeLimits(hang_seconds=HANG_SECONDS)


def limits_of(action_timeout_ms: float | None, overage_ms: float, hang_seconds: float | None) -> TimeLimits:
    """Return the limits of time under which a plan is played; what nobody could keep is refused."""
    if not overage_ms >= 0:
        raise UsageError(f"overage_ms must be at least 0, got {overage_ms:g}; leave it out for none")
    for name, value in (("action_timeout_ms", action_timeout_ms), ("hang_seconds", hang_seconds)):
        if value is not None and not value > 0:
            raise UsageError(f"{name} must be more than 0, got {value:g}; leave it out for the default")
    action_seconds = None if action_timeout_ms is None else action_timeout_ms / 1000
    return TimeLimits(action_seconds, overage_ms / 1000, hang_seconds)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is compared under one label: one policy that all agents follow, or a mix of several."""

    label: str
    specs: tuple[PolicySpec, ...]


def entries_of(policies: Sequence[Any], *, mix: bool) -> tuple[Entry, ...]:
    """Return what is compared: each policy by itself, or all of them together."""
    specs = [PolicySpec.of(policy) for policy in policies]
    if mix:
        return (Entry(" + ".join(spec.name for spec in specs), tuple(specs)),)
    return tuple(Entry(spec.name, (spec,)) for spec in specs)


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """How a worker computes what a plan says: but for limits of time that strike, this never changes a result.

    `replays` is the folder in which worlds may write what their episodes were, each in its own way.
    """

    strategy: str = "sequential"
    limits: TimeLimits = _USUAL_LIMITS
    keep_digests: bool = False
    replays: str | None = None

    def strategies(self, entry: Entry) -> list[str]:
        """Return where the agents of each policy choose: as the policy has it, or else as all do."""
        return [spec.strategy or self.strategy for spec in entry.specs]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a look at a mission and an entry showed: who acts, and what matters to a plan.

    `draws` are the global generators that each policy of the entry draws from, `world_draws` those that the world does.
    `batches` says which policies can act for many agents at once, and `interchangeable` for which of these it does not
    matter in which row of a batch an agent stands. `in_order` says, where that was asked for, why agents that follow a
    policy cannot be asked before it is their turn, and nothing if they can.
    """

    agents: tuple[AgentId, ...]
    draws: tuple[frozenset[str], ...]
    batches: tuple[bool, ...]
    world_draws: frozenset[str] = frozenset()
    interchangeable: tuple[bool, ...] = ()
    in_order: tuple[str, ...] = ()

    @property
    def askable_ahead(self) -> frozenset[int]:
        """The policies whose agents can be asked before it is their turn."""
        return frozenset(i for i, reason in enumerate(self.in_order) if not reason)


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker takes at a time: an episode, or several.

    These are played in step because a policy batches them, or else one after the other (`in_turn`): where one takes little
    time, a message for each would take more.
    """

    mission: int
    entry: int
    episodes: tuple[int, ...]
    in_turn: bool = False

    @property
    def singles(self) -> list[Task]:
        """A task for each of its episodes."""
        return [Task(self.mission, self.entry, (episode,)) for episode in self.episodes]


@dataclass(frozen=True, slots=True)
class Plan:
    """Missions x entries x episodes. The same plan gives the same results, however it is computed."""

    missions: tuple[Mission, ...]
    entries: tuple[Entry, ...]
    episodes: int
    seed: int
    max_steps: int | None = None
    turns: str = SIMULTANEOUS
    native_threads: int = 1
    episode_seeds: tuple[int, ...] | None = None
    episode_tasks: Tasks | None = None

    def __post_init__(self) -> None:
        for name, values in (("mission", self.missions), ("policy", self.entries)):
            if not values:
                raise UsageError(f"at least one {name} is needed, got none")
        if self.episodes < 1:
            raise UsageError(f"episodes must be at least 1, got {self.episodes}")
        if self.max_steps is not None and self.max_steps < 1:
            raise UsageError(
                f"steps must be at least 1, got {self.max_steps}; leave it out for the mission's own limit"
            )
        if self.seed < 0:
            raise UsageError(f"a seed must be at least 0, got {self.seed}")
        if self.episode_seeds is not None and (strange := [one for one in self.episode_seeds if not _is_seed(one)]):
            raise UsageError(f"episode_seeds must be whole numbers of at least 0, got {strange[0]!r}")
        check_tasks(self.episode_tasks)
        if self.turns not in WAYS_TO_PLAY_TURNS:
            raise UsageError(f"turns must be one of {', '.join(WAYS_TO_PLAY_TURNS)}, got {self.turns!r}")
        if type(self.native_threads) is not int or self.native_threads < 1:
            raise UsageError(f"native_threads must be a whole number of at least 1, got {self.native_threads!r}")
        labels = [entry.label for entry in self.entries]
        if len(set(labels)) < len(labels):
            raise UsageError(f"policies that are compared must have different names, got {', '.join(labels)}")

    def steps_of(self, mission: int) -> int | None:
        """Return the most steps of a mission's episodes, if there is such a limit."""
        return self.max_steps if self.max_steps is not None else self.missions[mission].max_steps

    def policy_plans(self, entry: int, facts: Facts, *, guarded: bool) -> list[PolicyPlan]:
        """Say what is fixed about the policies of an entry; `guarded`: all have private copies of all global generators."""
        return [
            PolicyPlan(
                spec,
                frozenset(GLOBAL_GENERATORS) if guarded else facts.draws[i],
                batch_rows(facts, i),
                self.seed,
                native_threads=self.native_threads,
                interchangeable=facts.interchangeable[i],
            )
            for i, spec in enumerate(self.entries[entry].specs)
        ]

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Every mission with every entry."""
        return ((mission, entry) for mission in range(len(self.missions)) for entry in range(len(self.entries)))

    def tasks(self, facts: dict[tuple[int, int], Facts], without: Iterable[tuple[int, int, int]] = ()) -> list[Task]:
        """Return all tasks but those whose episodes are all done: `without` has missions, entries and episodes."""
        done = set(without)
        tasks = []
        for mission, entry in self.pairs():
            together = lockstep(facts[mission, entry])
            for first in range(0, self.episodes, together):
                group = tuple(range(first, min(first + together, self.episodes)))
                if not all((mission, entry, episode) in done for episode in group):
                    tasks.append(Task(mission, entry, group))
        return tasks

    def episode(self, mission: int, entry: int, episode: int, agents: Sequence[AgentId]) -> EpisodePlan:
        """Say how an episode begins. Its seed does not depend on the policies: all are compared on the same episodes."""
        name = self.missions[mission].name
        tree = SeedTree(self.seed).child("mission", name, "episode", episode)
        proportions = [spec.proportion for spec in self.entries[entry].specs]
        assigned = _assigned(proportions, len(agents), episode, tree.child("mix"))
        # Its rows in batches follow from its number, not from the episodes that happen to be played in step with it.
        first_row = episode % _most_in_step(len(agents)) * len(agents)
        seed = tree.seed() if self.episode_seeds is None else self.episode_seeds[episode]
        policies = dict(zip(agents, assigned, strict=True))
        return EpisodePlan(episode, seed, policies, first_row, self.options_of(mission, episode))

    def options_of(self, mission: int, episode: int) -> dict[str, Any] | None:
        """Return the options with which an episode's world is reset: its task, if there are tasks."""
        if self.episode_tasks is None:
            return None
        tree = SeedTree(self.seed).child("mission", self.missions[mission].name)
        return {"task": task_of(self.episode_tasks, 0, episode, tree)}

    def batches(self, facts: Mapping[tuple[int, int], Facts]) -> dict[str, dict[str, dict[str, Any]]]:
        """Describe, by mission and policy, the batches of those that act for many agents at once."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for (mission, entry), seen in facts.items():
            for i, spec in enumerate(self.entries[entry].specs):
                if seen.batches[i]:
                    about = {"rows": batch_rows(seen, i), "rows_interchangeable": seen.interchangeable[i]}
                    found.setdefault(self.missions[mission].name, {})[spec.name] = about
        return found


def _assigned(proportions: Sequence[float], agents: int, episode: int, stream: SeedTree) -> list[int]:
    """Return the policy of each agent; there may be more policies than agents, as in games for two.

    Then those of an episode are drawn in proportion. If they have equal shares, all groups of them take turns, so that
    everybody meets everybody.
    """
    count = len(proportions)
    if count == 1:
        return [0] * agents
    rng = stream.generator()
    if count <= agents:
        assigned = [policy for policy, share in enumerate(shares(proportions, agents)) for _ in range(share)]
    elif len(set(proportions)) == 1 and (groups := math.comb(count, agents)) <= _MOST_GROUPS:
        assigned = list(next(islice(combinations(range(count), agents), episode % groups, None)))
    else:
        chances = np.array(proportions) / math.fsum(proportions)
        assigned = rng.choice(count, agents, replace=False, p=chances).tolist()
    return [assigned[i] for i in rng.permutation(agents)]


def _is_seed(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 0


def lockstep(facts: Facts) -> int:
    """Return how many episodes are played in step."""
    return _most_in_step(len(facts.agents)) if any(facts.batches) else 1


def _most_in_step(agents: int) -> int:
    return max(1, LOCKSTEP_ROWS // max(1, agents))


def batch_rows(facts: Facts, policy: int) -> int:
    """Return the rows of each batch of a policy: one for each agent of the episodes that are played in step.

    Where that would be too many, there are several batches of about the same size.
    """
    if not facts.batches[policy]:
        return 0
    agents = lockstep(facts) * len(facts.agents)
    return math.ceil(agents / math.ceil(agents / MOST_ROWS))


def shares(proportions: Sequence[float], count: int) -> list[int]:
    """Split `count` in proportion, by largest remainders; ties go to the first."""
    if any(p < 0 or not math.isfinite(p) for p in proportions) or not sum(proportions):
        raise UsageError(f"proportions must be numbers of at least 0, one of them more, got {list(proportions)}")
    exact = [count * p / sum(proportions) for p in proportions]
    whole = [math.floor(one) for one in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (whole[i] - exact[i], i))
    for i in by_remainder[: count - sum(whole)]:
        whole[i] += 1
    return whole
