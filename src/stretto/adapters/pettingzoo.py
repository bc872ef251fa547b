"""PettingZoo's parallel environments as worlds: all agents of a moment as one value with a fixed layout.

Agents of one kind (equal spaces) lie in one block, so that a policy that batches reads them without a copy. Rewards,
both flags and who is alive lie beside the observations; the dead have zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from stretto.errors import InvalidOutput, Place, UsageError


@dataclass(frozen=True, slots=True)
class AgentKind:
    """Agents with equal spaces, in the order of `possible_agents`."""

    agents: tuple[str, ...]
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]


def kinds_of(env: Any) -> list[AgentKind]:
    """Group the agents that an environment may ever have by their spaces."""
    agents = getattr(env, "possible_agents", None)
    if not agents:
        raise UsageError(
            f"a parallel environment must name all its possible_agents beforehand, and {env} does not; set it"
        )
    found: list[tuple[spaces.Space[Any], spaces.Space[Any], list[str]]] = []
    for agent in agents:
        seen, acted = env.observation_space(agent), env.action_space(agent)
        for observation_space, action_space, members in found:
            if seen == observation_space and acted == action_space:
                members.append(agent)
                break
        else:
            found.append((seen, acted, [agent]))
    return [AgentKind(tuple(members), seen, acted) for seen, acted, members in found]


class ParallelWorld(gymnasium.Env[Any, Any]):
    """A parallel environment with the face of a single one.

    Its observation is a Dict: `blocks` (one entry a kind), and for all agents, kind by kind, `reward`, `terminated`,
    `truncated` and `alive`. Its action is a Tuple with one block a kind; the actions of the dead are ignored. An
    episode is over when no agent is left.
    """

    def __init__(self, env: Any) -> None:
        self.parallel_env = env
        self.kinds = kinds_of(env)
        self.metadata = dict(getattr(env, "metadata", {}))
        self.render_mode = getattr(env, "render_mode", None)
        self.agents = [agent for kind in self.kinds for agent in kind.agents]
        self._index = {agent: i for i, agent in enumerate(self.agents)}
        count = len(self.agents)
        flags: spaces.Space[Any] = spaces.Box(0, 1, (count,), np.bool_)
        self.observation_space = spaces.Dict(
            {
                "blocks": spaces.Tuple([batch_space(k.observation_space, len(k.agents)) for k in self.kinds]),
                "reward": spaces.Box(-np.inf, np.inf, (count,), np.float64),
                "terminated": flags,
                "truncated": flags,
                "alive": flags,
            }
        )
        self._action_blocks = [batch_space(kind.action_space, len(kind.agents)) for kind in self.kinds]
        self.action_space = spaces.Tuple(self._action_blocks)
        self._zeros = [_zero(kind.observation_space) for kind in self.kinds]

    @property
    def unwrapped(self) -> ParallelWorld:
        return self

    @property
    def _np_random(self) -> Any:
        base = getattr(self.parallel_env, "unwrapped", self.parallel_env)
        return getattr(base, "np_random", None)

    @_np_random.setter
    def _np_random(self, generator: Any) -> None:
        base = getattr(self.parallel_env, "unwrapped", self.parallel_env)
        if getattr(base, "np_random", None) is not None:
            base.np_random = generator

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        keywords = {k: v for k, v in (("seed", seed), ("options", options)) if v is not None}
        observations, infos = self.parallel_env.reset(**keywords)
        return self._value(observations, {}, {}, {}), _filled(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        env = self.parallel_env
        living = set(env.agents)
        actions = {
            agent: one
            for kind, block, space in zip(self.kinds, action, self._action_blocks, strict=True)
            for agent, one in zip(kind.agents, iterate(space, block), strict=True)
            if agent in living
        }
        observations, rewards, terminated, truncated, infos = env.step(actions)
        for name, values in (("reward", rewards), ("terminated", terminated), ("truncated", truncated)):
            for agent in living:
                if agent not in values:
                    _refuse(agent, f"must have a {name} in every step that it lives to see", values)
        over = not env.agents
        return self._value(observations, rewards, terminated, truncated), 0.0, over, False, _filled(infos)

    def _value(self, observations: Any, rewards: Any, terminated: Any, truncated: Any) -> dict[str, Any]:
        living = self.parallel_env.agents
        for agent in living:
            if agent not in observations:
                _refuse(agent, "must be observed as long as it lives", sorted(observations))
        return {
            "blocks": tuple(self._block(k, observations) for k in range(len(self.kinds))),
            "reward": self._row("reward", rewards, np.float64),
            "terminated": self._row("terminated", terminated, np.bool_),
            "truncated": self._row("truncated", truncated, np.bool_),
            "alive": self._row("agents", dict.fromkeys(living, True), np.bool_),
        }

    def _block(self, k: int, observations: Any) -> Any:
        kind, zero = self.kinds[k], self._zeros[k]
        try:
            seen = [observations.get(agent, zero) for agent in kind.agents]
            with np.errstate(over="ignore"):
                block = _batched(kind.observation_space, seen)
            if isinstance(block, np.ndarray) and block.dtype.kind == "f" and not np.isfinite(block).all():
                self._check_fits(kind, block, seen)
            return block
        except (KeyError, IndexError, TypeError, ValueError):
            for agent in kind.agents:
                seen = observations.get(agent, zero)
                try:
                    _batched(kind.observation_space, [seen])
                except (KeyError, IndexError, TypeError, ValueError):
                    _refuse(agent, f"must be observed as {kind.observation_space}", seen)
            raise

    def _check_fits(self, kind: AgentKind, block: np.ndarray[Any, Any], seen: list[Any]) -> None:
        """Refuse what was finite and is not any more."""
        for agent, part, value in zip(kind.agents, block, seen, strict=True):
            if (np.isinf(part) & np.isfinite(np.asarray(value, np.float64))).any():
                _refuse(agent, f"must be observed by what fits into {part.dtype}", value)
            if np.isnan(part).any() and isinstance(kind.observation_space, spaces.Box):
                _refuse(agent, "must not be observed as NaN, which no Box contains", value)

    def _row(self, name: str, values: dict[str, Any], dtype: Any) -> np.ndarray[Any, Any]:
        row = np.zeros(len(self.agents), dtype)
        for agent, value in values.items():
            if agent not in self._index:
                _refuse(agent, "must be one of possible_agents", f"it in {name}")
            kind = np.asarray(value).dtype.kind if value is not None and np.ndim(value) == 0 else "O"
            if kind not in ("biuf" if dtype is np.float64 else "biu"):
                _refuse(agent, f"must have one {'number' if dtype is np.float64 else 'truth value'} as {name}", value)
            row[self._index[agent]] = value
        return row

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self.parallel_env, name)

    def set_wrapper_attr(self, name: str, value: Any, **_: Any) -> bool:
        setattr(self.parallel_env, name, value)
        return True

    def render(self) -> Any:
        return self.parallel_env.render()

    def close(self) -> None:
        self.parallel_env.close()

    def __str__(self) -> str:
        return str(self.parallel_env)


def _batched(space: spaces.Space[Any], values: list[Any]) -> Any:
    return concatenate(space, values, cast(Any, create_empty_array(space, len(values))))


def _refuse(agent: str, rule: str, value: Any) -> NoReturn:
    raise InvalidOutput(f"agent {agent!r} {rule}, got {value!r}", Place("stepping", agent=agent))


def _zero(space: spaces.Space[Any]) -> Any:
    """Return the observation of an agent that is not there."""
    batch: Any = create_empty_array(space, 1)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return next(iter(iterate(batch_space(space, 1), batch)))
    return None if batch is None else batch[0]


def _filled(infos: dict[str, Any] | Iterable[Any]) -> dict[str, Any]:
    return {agent: info for agent, info in infos.items() if info} if isinstance(infos, dict) else {}
