"""Run: a world, its learners and the loop around them, built from a configuration."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from stretto.budget import CpuBudget, NativeThreads
from stretto.collection.collector import Trials
from stretto.collection.making import TrialMaker
from stretto.collection.rollouts import Rollouts
from stretto.collection.worlds import BlockWorlds
from stretto.core import AgentId, AgentKind, BlockPolicy
from stretto.envs.make import make_vec
from stretto.errors import BlocksMatter, UsageError, user_stacklevel
from stretto.policies.networks.check import stacks_exactly
from stretto.policies.networks.network import Network
from stretto.training.blocks import learner_blocks, parts_of
from stretto.training.choices import Choices, choices_of, world_options
from stretto.training.learner_workers import Workplace
from stretto.training.learners.base import Learner, LearnerBlock
from stretto.training.learners.known import learner_named
from stretto.training.loop import Interval, Loop, Pace
from stretto.training.nodes import Nodes, player_of
from stretto.training.recorded import Recorded
from stretto.training.sets import LearnerSet
from stretto.training.settings import Config
from stretto.training.sides import PlayedElsewhere, Side, SteppedHere
from stretto.training.turns import LearningTurns, priority_named
from stretto.workers.backends import PROCESS, SERIAL, THREAD
from stretto.workers.base import Backend

MANY_CORES = 3
"""From so many cores on, a learner is less than half of them."""

_SETS = {"threads": THREAD, "processes": PROCESS}

LONG = 10**11
"""`auto` lets processes learn where all rows that are learned from, times the weights of an agent, are more than this: about
10 s of one core. Another process takes a second to begin and 200 MB."""


def build_learner(learner: str, settings: Any, blocks: list[LearnerBlock], number: int) -> Learner:
    """Make the learner of a block, in whichever process."""
    built: Learner = learner_named(learner)(blocks[number], settings)
    return built


def _checked_devices(config: Config) -> list[str]:
    """Return where the networks of blocks compute; what cannot be is refused before a world is made to wait for it."""
    devices = [one.strip() for one in config.device.split(",")]
    for device in devices:
        if device.partition(":")[0] != "cpu" and config.learner in ("dqn", "sac"):
            raise UsageError(f"device must be cpu with {config.learner}, got {config.device}; leave it out, or use ppo")
        try:
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(
                f"device must be one that torch can compute on here, got {device} ({reason}); use cpu"
            ) from None
    return devices


def _stacks_exactly(blocks: list[LearnerBlock], build: Callable[[int], Learner], settings: Any) -> bool:
    """Return whether agents learn the same bits alone as in blocks, and warn if they do not: see `networks.check`."""
    checked = set()
    for number, block in enumerate(blocks):
        kind = str(block.observation_space), str(block.action_space)
        if kind in checked or len(block.agents) == 1:
            continue
        checked.add(kind)
        policy: Any = build(number).policy
        networks = getattr(policy, "networks", [getattr(policy, "network", None)])
        if not all(stacks_exactly(one, settings.batch) for one in networks if isinstance(one, Network)):
            warning = BlocksMatter(
                f"the last bits of what agents learn depend on which of them are computed together on this machine: "
                f"blocks of {len(block.agents)} are part of the plan, in every learner set"
            )
            warnings.warn(warning, stacklevel=user_stacklevel())
            return False
    return True


def _is_separable(config: Config) -> bool:
    """Return whether the state of a block of agents can be saved and loaded in parts."""
    return hasattr(learner_named(config.learner), "rows_learned")


def _is_long(config: Config, blocks: list[LearnerBlock], build: Callable[[int], Learner]) -> bool:
    """Return whether so much is learned that it pays to use all cores."""
    agents = sum(len(block.agents) for block in blocks)
    if agents == 1 or config.device != "cpu" or not _is_separable(config):
        return False
    learner: Any = learner_named(config.learner)
    rows = learner.rows_learned(config.settings, config.steps)
    network = getattr(build(0).policy, "network", None)
    return isinstance(network, Network) and agents * int(rows) * network.parameters.flat.shape[1] > LONG


def _replays(settings: Any, environments: int) -> float:
    """Return how often a row is learned from if each interval is learned from once."""
    if hasattr(settings, "updates"):
        return float(settings.updates * settings.batch / (settings.rows * environments))
    return float(getattr(settings, "epochs", 1))


def _joined_episodes(config: Config, kinds: Sequence[AgentKind]) -> int:
    """Return how many episodes are one to learners."""
    episodes = config.trials.episodes if config.trials.across else 1
    agents = [agent for kind in kinds for agent in kind.agents]
    if episodes > 1 and len(agents) > 1:
        raise UsageError(
            f"trials.across joins the episodes of one agent, got {len(agents)} agents; set trials.across to false"
        )
    return episodes


def _where(choices: Choices, workers: int, *, is_long: bool) -> tuple[Backend, int]:
    """Return where learners compute, and in how many workers; `is_long` says whether all cores pay.

    Learners that overlap with collecting have a process of their own at least, unless there is a single core.
    """
    if choices.learner_set in ("threads", "processes"):
        return _SETS[choices.learner_set], workers
    if choices.loop == "sync":
        return (PROCESS, workers) if is_long and workers > 1 else (SERIAL, 1)
    if choices.serial or workers == 1:
        return SERIAL, 1
    return PROCESS, max(1, workers // 2) if choices.learner_set == "auto" else 1


def _apart(choices: Choices, workers: int, make: TrialMaker) -> int:
    """Return how many cores learners have for themselves, which are not for worlds; 0: they share all cores with worlds.

    Where they take half of the cores or more, as one of two, all are shared: on two cores a DQN whose worlds compute had
    1.24 times `sync` so, and 1.13 where the caller alone stepped worlds. With fewer learners, the worker beside each of
    them would make all others wait in every step.
    """
    backend, learning = _where(choices, workers, is_long=False)
    if choices.loop == "sync" or backend is SERIAL or workers < MANY_CORES:
        return 0
    learning = min(learning, len(make.spec().agents))
    return learning if 2 * learning < workers else 0


@dataclass(frozen=True)
class _Layout:
    """Which agents learn together, in which parts of each block of the plan, and where; and how many workers collect."""

    blocks: list[LearnerBlock]
    parts: list[int]
    place: Workplace
    collecting: int = 0

    @classmethod
    def of(
        cls,
        config: Config,
        choices: Choices,
        settings: Any,
        kinds: Sequence[AgentKind],
        seed: int,
        cores: CpuBudget | Nodes,
    ) -> _Layout:
        devices = config.device.split(",") if isinstance(cores, Nodes) else _checked_devices(config)
        where: Any = {"devices": devices, "stale": choices.loop == "free"}
        planned = learner_blocks(kinds, seed, config.num_envs, config.block, **where)
        build = partial(build_learner, config.learner, settings, planned)
        exact, collecting = _stacks_exactly(planned, build, settings), 0
        if isinstance(cores, CpuBudget):
            is_long = choices.learner_set == "auto" and exact and _is_long(config, planned, build)
            backend, learning = _where(choices, choices.workers or cores.total, is_long=is_long)
        else:
            agents = sum(len(block.agents) for block in planned)
            collecting, learning = cores.split(choices.workers, config.num_envs, agents)
            backend, learning = (cores.backend, learning) if learning else (SERIAL, 1)
        if exact and choices.learner_set == "sequential":
            planned = learner_blocks(kinds, seed, config.num_envs, 1, **where)
        parts = [[block] for block in planned]
        if exact and backend is not SERIAL and _is_separable(config):
            parts = [parts_of(block, -(-learning // len(planned))) for block in planned]
        if choices.loop != "sync" and backend is not SERIAL:
            learning = min(learning, sum(map(len, parts)))
        limits = config.native_threads, config.learner_seconds, config.on_failure
        if isinstance(cores, Nodes):
            place = Workplace(backend, learning, *limits, room=cores.room)
        else:
            place = Workplace(backend, learning, *limits, cores)
        return cls([part for some in parts for part in some], list(map(len, parts)), place, collecting)


def _worlds(
    stack: ExitStack, make: TrialMaker, config: Config, cores: CpuBudget | Nodes, options: dict[str, Any], apart: int
) -> BlockWorlds | None:
    """Make the worlds that this process steps, on the cores that learners leave, unless they are on a cluster."""
    if isinstance(cores, Nodes):
        return None
    stack.callback(cores.lease(apart).release)
    envs = make_vec(make, config.num_envs, copy=False, budget=cores, **options)
    stack.callback(envs.close)
    return BlockWorlds(envs)


def _kinds_of(make: TrialMaker) -> list[AgentKind]:
    """Make a world to look at who acts in it."""
    with make_vec(make, 1, backend="serial", vectorized=False) as envs:
        return BlockWorlds(envs).kinds


class Run:
    """Collects and learns, an interval at a time, until it has done all steps; a context manager.

    Args:
        make: makes a world.
        trials: what is played in the worlds; or rollouts, from which agents learn in place of what they do themselves.
        config: how agents learn, and how that is computed.
        seed: of everything random.
        cores: those to draw on: of this machine, or of the nodes of a cluster, where both sides compute then.
        options: as of `make_vec`.
        resumable: whether its state will be saved.
    """

    def __init__(
        self,
        make: TrialMaker,
        trials: Trials | Rollouts,
        config: Config,
        seed: int,
        cores: CpuBudget | Nodes,
        options: dict[str, Any],
        *,
        resumable: bool = False,
    ) -> None:
        choices = choices_of(config)
        rows = config.settings.rows * config.parallel.train_interval
        settings = replace(config.settings, rows=rows)
        options = world_options(choices, options)
        act_rows = config.num_envs if config.act_rows == "auto" else config.act_rows
        self._stack = ExitStack()
        with ExitStack() as stack:
            stack.enter_context(NativeThreads(config.native_threads).capped())
            apart = 0 if isinstance(cores, Nodes) else _apart(choices, choices.workers or cores.total, make)
            reads = isinstance(trials, Rollouts)
            worlds = None if reads else _worlds(stack, make, config, cores, options, apart)
            kinds = _kinds_of(make) if worlds is None else worlds.kinds
            layout = _Layout.of(config, choices, settings, kinds, seed, cores)
            build = partial(build_learner, config.learner, settings, layout.blocks)
            side: Side
            if isinstance(trials, Rollouts):
                side = Recorded(trials, kinds, config.num_envs, seed)
            elif worlds is not None:
                side = SteppedHere(worlds, trials, act_rows=act_rows, resumable=resumable, turns=choices.turns)
            else:
                assert isinstance(cores, Nodes)
                place, how = cores.place(layout.collecting, options)
                sizes = {"slots": config.num_envs, "rows": rows, "act_rows": act_rows}
                how |= {"trials": trials, "turns": choices.turns, **sizes}
                player = player_of(make, build, layout.parts, layout.blocks, kinds, **how)
                side = PlayedElsewhere(player, kinds, place)
            stack.callback(side.close)
            if choices.loop != "sync" and isinstance(cores, CpuBudget) and layout.place.backend is not SERIAL:
                stack.callback(cores.lease(layout.place.workers - apart).release)
            self.learners = LearnerSet(
                build,
                layout.parts,
                layout.place,
                ahead={"sync": 0, "pipelined": 1, "free": config.most_lag}[choices.loop],
                turns=partial(
                    LearningTurns, most=config.learners_an_interval, priority=priority_named(config.priority)
                ),
            )
            stack.callback(self.learners.close)
            episodes = _joined_episodes(config, kinds)
            pace = Pace(rows, config.steps, choices.loop == "free", _replays(settings, config.num_envs), episodes)
            self.loop = Loop(side, self.learners, pace)
            stack.callback(self.loop.close)
            self._stack = stack.pop_all()

    @property
    def policies(self) -> list[BlockPolicy]:
        """What each block of agents does, with its weights as they are."""
        return [learner.policy for learner in self.learners.learners]

    def __iter__(self) -> Iterator[Interval]:
        return iter(self.loop)

    def weights(self) -> dict[AgentId, str]:
        """Return a sha256 of each agent's weights."""
        found = {}
        for learner in self.learners.learners:
            for agent, arrays in zip(learner.policy.world.agents, learner.weights(), strict=True):
                digest = hashlib.sha256()
                for array in arrays:
                    digest.update(np.ascontiguousarray(array).tobytes())
                found[agent] = digest.hexdigest()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of worlds and learners; may be called twice."""
        self._stack.close()
