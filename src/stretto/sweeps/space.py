"""What a sweep varies: of each setting the values to try, or a span to draw from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import yaml

from stretto.errors import UsageError

Point = dict[str, Any]
"""A value of each setting that is varied, by its key with dots."""


@dataclass(frozen=True, slots=True)
class Values:
    """These values, each as likely as any other."""

    values: tuple[Any, ...]

    def draw(self, stream: np.random.Generator) -> Any:
        """Return one of them."""
        return self.values[int(stream.integers(len(self.values)))]


@dataclass(frozen=True, slots=True)
class Span:
    """All numbers from `low` to `high`: their logarithms evenly with `log`, and whole ones alone with `whole`."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def draw(self, stream: np.random.Generator) -> float | int:
        """Return one of them."""
        if self.whole and not self.log:
            return int(stream.integers(int(self.low), int(self.high) + 1))
        if not self.log:
            return float(stream.uniform(self.low, self.high))
        drawn = math.exp(stream.uniform(math.log(self.low), math.log(self.high)))
        return min(int(self.high), max(int(self.low), round(drawn))) if self.whole else drawn


Space = Mapping[str, Values | Span]


def space_of(given: Mapping[str, Any]) -> Space:
    """Return what is varied: a list has values, and a mapping with `low` and `high` is a span.

    Raises:
        UsageError: with the key and what it was given, where that is neither.
    """
    if not given:
        raise UsageError("a sweep varies one setting or more, got none; give, for example, ppo.learning_rate=1e-4,1e-3")
    return {key: _part(key, value) for key, value in given.items()}


def _part(key: str, value: Any) -> Values | Span:
    if isinstance(value, (Values, Span)):
        return value
    if isinstance(value, Mapping):
        return _span(key, value)
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise UsageError(f"a sweep tries several values of {key}, got {value!r}; give a list, or low and high")
    values = tuple(value)
    texts = [repr(one) for one in values]
    if len(values) < 2 or len(set(texts)) < len(texts):
        raise UsageError(f"a sweep tries two or more values of {key}, all different, got {list(values)}")
    return Values(values)


def _span(key: str, value: Mapping[str, Any]) -> Span:
    names = {"low", "high", "log", "whole"}
    if {"low", "high"} <= set(value) <= names and all(_is_number(value[name]) for name in ("low", "high")):
        flags = {name: bool(value.get(name, False)) for name in ("log", "whole")}
        span = Span(value["low"], value["high"], **flags)
        whole = not span.whole or (span.low == int(span.low) and span.high == int(span.high))
        if span.low < span.high and whole and (span.low > 0 or not span.log):
            return span
    raise UsageError(
        f"a span has numbers low and high, the lower first, both above 0 with log and whole with whole, got "
        f"{dict(value)} for {key}; write {{low: 1e-4, high: 1e-2, log: true}}"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_space(texts: Iterable[str]) -> dict[str, Any]:
    """Return what texts vary: `KEY=1,2,3` are values, `KEY=1..9` and `KEY=log:1e-4..1e-2` spans.

    A span between whole numbers has whole numbers alone; write `1.0..9.0` for all.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, said = text.partition("=")
        if not equals or not key.strip() or not said.strip():
            raise UsageError(f"what is varied is KEY=VALUE,VALUE or KEY=LOW..HIGH, got {text!r}")
        found[key.strip()] = _read_span(said) or _read_values(key, said)
    return found


def _read_span(said: str) -> dict[str, Any] | None:
    scale, colon, ends = said.strip().rpartition(":")
    low, dots, high = ends.partition("..")
    numbers = [_number(low), _number(high)]
    if not dots or (colon and scale != "log") or not all(_is_number(one) for one in numbers):
        return None
    whole = all(isinstance(one, int) for one in numbers)
    return {"low": numbers[0], "high": numbers[1], "log": bool(colon), "whole": whole}


def _read_values(key: str, said: str) -> list[Any]:
    try:
        read = yaml.safe_load(f"[{said}]")
    except yaml.YAMLError:
        raise UsageError(f"values are written as in YAML, with commas between them, got {said!r} for {key}") from None
    nested = len(read) == 1 and isinstance(read[0], list)
    return [_number(one) if isinstance(one, str) else one for one in (read[0] if nested else read)]


def _number(text: str) -> Any:
    """Return the number that a text is, else the text: YAML takes 1e-4 for a text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def plain_space(space: Space) -> dict[str, Any]:
    """Return it in plain values, which `space_of` takes."""
    return {key: list(one.values) if isinstance(one, Values) else asdict(one) for key, one in space.items()}


def value_text(value: Any) -> str:
    """Return a value of a setting; of a number three digits that count."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def point_text(point: Point) -> str:
    """Return the settings of a candidate in a line."""
    return ", ".join(f"{key}={value_text(value)}" for key, value in point.items())


def nested(point: Point) -> dict[str, Any]:
    """Return the settings of a point as a configuration has them: `{"ppo.batch": 64}` is `{"ppo": {"batch": 64}}`."""
    found: dict[str, Any] = {}
    for key, value in point.items():
        *parts, last = key.split(".")
        inner = found
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return found
