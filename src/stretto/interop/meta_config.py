"""The keys of a YAML file of pomdp-baselines that are about environments and collection, as a record."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from stretto.errors import UsageError
from stretto.interop.meta import AUTO, make_parallel_env
from stretto.interop.parallel_env import ParallelEnv
from stretto.registry import near_or_all

ENV_TYPES = ("meta", "pomdp", "credit", "rmdp", "generalize", "atari")

_MISTYPED = 0.8
"""How alike one of our keys a learner's own key must be to count as a mistake."""


@dataclass(frozen=True, slots=True)
class MetaConfig:
    """What a file says about environments (`env`) and collection (`train`); read it with `read_meta_config`."""

    env_name: str
    env_type: str = "meta"
    max_rollouts_per_task: int = 1
    num_tasks: int | None = None
    num_train_tasks: int | None = None
    num_eval_tasks: int | None = None
    num_parallel_workers: int | str = 1
    oracle: bool = False
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_rollouts_per_iter: int = 1
    num_init_rollouts_pool: int = 0

    def make_parallel_env(self, seed: int | None = None, **make_options: Any) -> ParallelEnv | None:
        """Make the environments, with these options of `make_vec`; `None` where one worker was asked for."""
        if self.num_parallel_workers == 1:
            return None
        tasks = {name: getattr(self, name) for name in ("num_tasks", "num_train_tasks", "num_eval_tasks")}
        return make_parallel_env(
            self.env_name,
            self.max_rollouts_per_task,
            self.num_parallel_workers,
            seed,
            self.oracle,
            make_options=make_options,
            **{name: count for name, count in tasks.items() if count is not None},
            **self.env_kwargs,
        )


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= least


_COUNT = "a whole number of at least 1", _whole(1)
_COUNT_OR_NONE = "a whole number of at least 1, or null", lambda value: value is None or _whole(1)(value)

_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "env_name": ("the name of a world", lambda value: isinstance(value, str) and bool(value)),
    "env_type": (f"one of {', '.join(ENV_TYPES)}", lambda value: value in ENV_TYPES),
    "max_rollouts_per_task": _COUNT,
    "num_tasks": _COUNT_OR_NONE,
    "num_train_tasks": _COUNT_OR_NONE,
    "num_eval_tasks": _COUNT_OR_NONE,
    "num_parallel_workers": (f"{_COUNT[0]}, or {AUTO}", lambda value: value == AUTO or _whole(1)(value)),
    "oracle": ("true or false", lambda value: isinstance(value, bool)),
    "env_kwargs": ("a mapping from names to values", lambda value: isinstance(value, Mapping)),
    "num_rollouts_per_iter": _COUNT,
    "num_init_rollouts_pool": ("a whole number of at least 0", _whole(0)),
}
_IN_TRAIN = ("num_rollouts_per_iter", "num_init_rollouts_pool")
_IN_ENV = tuple(name for name in _RULES if name not in _IN_TRAIN)


def read_meta_config(path: str | Path) -> MetaConfig:
    """Read a YAML file.

    Raises:
        UsageError: in one sentence, if it is no such file.
    """
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"a configuration must be readable YAML, and {path} is not: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"a configuration must be readable YAML, and {path} is not: {reason}") from None
    return meta_config(content, str(path))


def meta_config(content: Any, where: str = "the configuration") -> MetaConfig:
    """Return the record of a mapping with the sections `env` and `train`, or with all keys side by side."""
    if not isinstance(content, Mapping):
        raise UsageError(f"{where} must be a mapping with the keys env and train, got {content!r}")
    flat = "env" not in content
    env, train = (content, content) if flat else (content["env"], content.get("train") or {})
    for name, section in (("env", env), ("train", train)):
        if not isinstance(section, Mapping):
            raise UsageError(f"{name} in {where} must be a mapping from keys to values, got {section!r}")
    for key in train if flat else [*env, *train]:
        _check_known(str(key), env if key in env else train, where, strict=not flat and key in env)
    found = {name: section[name] for section in (env, train) for name in _RULES if name in section}
    if "env_name" not in found:
        raise UsageError(f"{where} must name its world, and has no env_name; add env_name: NAME to env")
    for name, value in found.items():
        rule, holds = _RULES[name]
        if not holds(value):
            default = next(one.default for one in fields(MetaConfig) if one.name == name)
            usual = f"; leave it out for {default!r}" if isinstance(default, int | str) else "; write another"
            raise UsageError(f"{name} in {where} must be {rule}, got {value!r}{usual}")
    return MetaConfig(**found)


def _check_known(key: str, section: Mapping[str, Any], where: str, *, strict: bool) -> None:
    """Refuse a key that is none of ours; among a learner's own keys, one that is nearly one of ours."""
    if key in _RULES:
        return
    if strict:
        raise UsageError(
            f"no key of env in {where} is called {key!r} (arguments of a world stand under env_kwargs), got "
            f"{section[key]!r} for it{near_or_all(key, _IN_ENV)}"
        )
    meant = difflib.get_close_matches(key, [name for name in _RULES if name not in section], n=1, cutoff=_MISTYPED)
    if meant:
        raise UsageError(f"no key in {where} is called {key!r}, got {section[key]!r} for it; did you mean {meant[0]}?")
