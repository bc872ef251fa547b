"""Engines: which settings a sweep tries. What they propose depends on the seed and on earlier results, never on time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from stretto.errors import UsageError
from stretto.seeding.streams import SeedTree
from stretto.sweeps.space import Point, Space, Span, Values

GRID, RANDOM, OPTUNA = "grid", "random", "optuna"
ENGINES = (GRID, RANDOM, OPTUNA)


class Engine(Protocol):
    """Proposes candidates, in rounds: what is learned from a round counts for the next one."""

    def propose(self, numbers: Sequence[int]) -> list[Point]:
        """Return the candidates with these numbers, which follow those of the round before."""

    def hear(self, scores: Mapping[int, float | None]) -> None:
        """Take in what came of the candidates of a round, by number; `None`: it failed."""


class Grid:
    """All combinations; the last setting changes first."""

    def __init__(self, space: Space) -> None:
        self._space = _listed(space)

    def propose(self, numbers: Sequence[int]) -> list[Point]:
        every = list(itertools.product(*(one.values for one in self._space.values())))
        return [dict(zip(self._space, every[number], strict=True)) for number in numbers]

    def hear(self, scores: Mapping[int, float | None]) -> None:
        pass


class Random:
    """Values drawn for each candidate from a stream of its own: more candidates change none of the others."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._stream = space, SeedTree(seed).child("sweep")

    def propose(self, numbers: Sequence[int]) -> list[Point]:
        streams = [self._stream.child(number).generator() for number in numbers]
        return [{key: one.draw(stream) for key, one in self._space.items()} for stream in streams]

    def hear(self, scores: Mapping[int, float | None]) -> None:
        pass


class Optuna:
    """What Optuna's sampler of Parzen trees proposes, after all rounds before."""

    def __init__(self, space: Space, seed: int) -> None:
        if find_spec("optuna") is None:
            raise UsageError(
                "the engine optuna needs Optuna, which this Python does not have; pip install 'stretto[sweep]'"
            )
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._failed = optuna.trial.TrialState.FAIL
        seed = SeedTree(seed).child("sweep").seed()
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=False)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        # Optuna takes plain values alone as choices: it is given their places.
        self._spaces = {key: _distribution(optuna.distributions, one) for key, one in space.items()}
        self._space, self._trials = space, dict[int, Any]()

    def propose(self, numbers: Sequence[int]) -> list[Point]:
        self._trials = {number: self._study.ask(self._spaces) for number in numbers}
        return [{key: self._value(key, trial.params[key]) for key in self._space} for trial in self._trials.values()]

    def _value(self, key: str, given: Any) -> Any:
        one = self._space[key]
        return one.values[given] if isinstance(one, Values) else given

    def hear(self, scores: Mapping[int, float | None]) -> None:
        for number, trial in self._trials.items():
            score = scores[number]
            if score is None or not math.isfinite(score):
                self._study.tell(trial, state=self._failed)
            else:
                self._study.tell(trial, score)


def _distribution(distributions: Any, one: Values | Span) -> Any:
    if isinstance(one, Values):
        return distributions.CategoricalDistribution(list(range(len(one.values))))
    if one.whole:
        return distributions.IntDistribution(int(one.low), int(one.high), log=one.log)
    return distributions.FloatDistribution(one.low, one.high, log=one.log)


def _listed(space: Space) -> dict[str, Values]:
    spans = [key for key, one in space.items() if isinstance(one, Span)]
    if spans:
        raise UsageError(
            f"a grid tries given values, and {' and '.join(spans)} has a span; list its values, or choose the engine random"
        )
    return {key: one for key, one in space.items() if isinstance(one, Values)}


def settled_engine(name: str | None, space: Space, candidates: int | None) -> tuple[str, int]:
    """Return which engine proposes, and how many candidates there are.

    By default a grid where all settings have values, and all of its combinations; else random ones.
    """
    spans = any(isinstance(one, Span) for one in space.values())
    chosen = name or (RANDOM if spans or candidates is not None else GRID)
    if chosen not in ENGINES:
        raise UsageError(f"an engine is one of {', '.join(ENGINES)}, got {name!r}")
    if chosen == GRID:
        every = math.prod(len(one.values) for one in _listed(space).values())
        if candidates not in (None, every):
            raise UsageError(
                f"a grid has all combinations, {every} of them, got {candidates} candidates; leave that out, or choose the "
                f"engine random"
            )
        return GRID, every
    if candidates is None or candidates < 1:
        raise UsageError(f"the engine {chosen} needs to know how many candidates to try, got {candidates}; say, 20")
    return chosen, candidates


def engine_of(name: str, space: Space, seed: int) -> Engine:
    """Return the engine of a name."""
    match name:
        case "grid":
            return Grid(space)
        case "random":
            return Random(space, seed)
        case _:
            return Optuna(space, seed)
