"""The configuration of a run: what YAML files, dotted settings and arguments say, checked and complete.

Every key is a field of a frozen dataclass: `ppo.learning_rate` is the field `learning_rate` of `PpoSettings`. pydantic
checks the values by their annotations; unknown keys are refused with the nearest known one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from stretto.errors import UsageError
from stretto.registry import near_or_all
from stretto.training.learners.known import learner_named
from stretto.training.presets import preset_for
from stretto.training.schedules import Schedule
from stretto.training.settings import Config

# --- reading ------------------------------------------------------------------------------------------------------


def config_of(mission: str, *layers: Mapping[str, Any]) -> Config:
    """Return the configuration that layers of nested values give, later ones over earlier ones, all over the preset.

    Raises:
        UsageError: with the key, its value, the rule and the nearest known key.
    """
    given: dict[str, Any] = {}
    for layer in layers:
        _merge(given, _checked(Config, layer, ""))
    learner_named(given.get("learner", Config.learner))
    preset, settings = preset_for(mission, given.get("learner", Config.learner), given.get("preset", Config.preset))
    values = _checked(Config, plain(Config()), "")  # so that `dqn.epsilon.end` alone can be given
    _merge(values, _checked(Config, settings, ""))
    _merge(values, {**given, "preset": preset})
    try:
        return TypeAdapter(Config).validate_python(values)
    except ValidationError as error:
        raise UsageError(_told(error.errors(include_url=False)[0])) from None


def read_config(path: Path) -> dict[str, Any]:
    """Return the values of a YAML file."""
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"a configuration must be a readable YAML file, got {path} ({reason})") from None
    if not isinstance(values, (dict, type(None))):
        raise UsageError(f"a configuration must have keys and values, got {values!r:.60} in {path}; write key: value")
    return values or {}


def settings_of(texts: Iterable[str]) -> dict[str, Any]:
    """Return the nested values of texts such as `ppo.learning_rate=3e-4`; a value is read as YAML."""
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise UsageError(f"a setting is KEY=VALUE, got {text!r}; write, for example, ppo.learning_rate=3e-4")
        try:
            read: Any = yaml.safe_load(value)
        except yaml.YAMLError:
            read = value
        for part in reversed(key.strip().split(".")):
            read = {part: read}
        _merge(values, read)
    return values


def _merge(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = dict(value) if isinstance(value, Mapping) else value


def _checked(kind: Any, values: Any, at: str) -> dict[str, Any]:
    """Return values by key with the form that a dataclass has; unknown keys are refused."""
    if is_dataclass(values) and not isinstance(values, type):
        values = dataclasses.asdict(values)
    if kind is Schedule and not isinstance(values, Mapping):
        values = dataclasses.asdict(Schedule(values))  # whole: what a layer below says of its end holds no more
    if not isinstance(values, Mapping):
        named = at.removesuffix(".") or "a configuration"
        raise UsageError(f"{named} must have keys and values, got {values!r}; write {named}: {{key: value}}")
    hints = get_type_hints(kind)
    found = {}
    for key, value in values.items():
        if key not in hints:
            raise UsageError(f"no setting is called {at}{key}, got {value!r} for it{_nearest(kind, key, at)}")
        inner = hints[key]
        found[key] = _checked(inner, value, f"{at}{key}.") if is_dataclass(inner) else value
    return found


def _nearest(kind: type[Any], key: str, at: str) -> str:
    """Offer keys that are called like one that is not known: of this part, or of all."""
    here = [f"{at}{one.name}" for one in fields(kind)]
    return near_or_all(f"{at}{key}", here if at else [*here, *known_keys()])


def known_keys(kind: type[Any] = Config, at: str = "") -> Iterator[str]:
    """Yield all keys, with dots."""
    for name, inner in get_type_hints(kind).items():
        if is_dataclass(inner) and inner is not Schedule:
            yield from known_keys(inner, f"{at}{name}.")  # type: ignore[arg-type]
        else:
            yield f"{at}{name}"


def _told(error: Any) -> str:
    """Return what is wrong with a value: its key, the rule and the value."""
    key = ".".join(str(part) for part in error["loc"] if not str(part).startswith(("function-", "literal")))
    rule = str(error["msg"]).replace("Input should ", "must ", 1)
    return f"{key} {rule}, got {error['input']!r}"


# --- writing ------------------------------------------------------------------------------------------------------


def plain(config: Any) -> dict[str, Any]:
    """Return a configuration as values that YAML and JSON hold; a schedule that stays is its number."""

    def value_of(value: Any) -> Any:
        if isinstance(value, Schedule) and value.end is None:
            return value.begin
        if is_dataclass(value) and not isinstance(value, type):
            return {one.name: value_of(getattr(value, one.name)) for one in fields(value)}
        return list(value) if isinstance(value, tuple) else value

    shown: dict[str, Any] = value_of(config)
    return shown
