"""What all adapters share: the user's own object inside, and the rules for what it gives by agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
from gymnasium import spaces

from stretto.core import Action, AgentId, Observation, WorldSpec, WorldStatistics
from stretto.errors import InvalidOutput, Place, UsageError

__calls_user_code__ = True


class _Scalar(NamedTuple):
    """What stands for an agent: how it is called, which kinds of numpy it may be of, and common types that always are."""

    name: str
    kinds: str
    types: frozenset[type]


_NUMBER = _Scalar("number", "biuf", frozenset({float, int, np.float64, np.float32}))
_FLAG = _Scalar("truth value", "biu", frozenset({bool, int, np.bool_}))


class NativeWorld:
    """A world that its user made: `native` with all wrappers, and `inside` without any.

    `stream` is the name under which it keeps its `np_random`.
    """

    def __init__(self, native: Any, inside: Any, stream: str = "np_random") -> None:
        self.native, self._inside, self._stream = native, inside, stream

    @property
    def np_random(self) -> np.random.Generator | None:
        return getattr(self._inside, self._stream, None)

    @np_random.setter
    def np_random(self, generator: np.random.Generator | None) -> None:
        if self.np_random is not None:
            setattr(self._inside, self._stream, generator)

    def spec(self) -> WorldSpec:
        env = self.native
        agents = tuple(env.possible_agents)
        return self.spec_of({agent: (env.observation_space(agent), env.action_space(agent)) for agent in agents})

    def spec_of(self, spaces_by_agent: Mapping[AgentId, tuple[spaces.Space[Any], spaces.Space[Any]]]) -> WorldSpec:
        """Describe the world by what each agent observes and what it can do."""
        return WorldSpec(
            tuple(spaces_by_agent),
            {agent: seen for agent, (seen, _) in spaces_by_agent.items()},
            {agent: done for agent, (_, done) in spaces_by_agent.items()},
            tuple(getattr(self._inside, "action_names", ())),
            dict(getattr(self._inside, "facts", None) or {}),
        )

    def statistics(self) -> WorldStatistics:
        offered = getattr(self._inside, "statistics", None)
        return plain_statistics(offered()) if callable(offered) else {}

    def save_replay(self, path: str) -> str | None:
        save = getattr(self._inside, "save_replay", None)
        return str(save(path) or path) if callable(save) else None

    def render(self) -> Any:
        return self.native.render()

    def close(self) -> None:
        self.native.close()


class Sights(Mapping[AgentId, Observation]):
    """What agents see now. Those who cannot act are looked at only if somebody asks: observing may be slow.

    When the world goes on, whoever is `unseen` by then is not there any more.
    """

    def __init__(
        self,
        observe: Callable[[AgentId], Observation],
        seen: dict[AgentId, Observation],
        unseen: list[AgentId],
    ) -> None:
        self._observe, self._seen, self._unseen = observe, seen, unseen

    def __getitem__(self, agent: AgentId) -> Observation:
        if agent in self._unseen:
            self._unseen.remove(agent)
            self._seen[agent] = self._observe(agent)
        return self._seen[agent]

    def __contains__(self, agent: object) -> bool:
        return agent in self._seen or agent in self._unseen

    def __iter__(self) -> Iterator[AgentId]:
        return iter([*self._seen, *self._unseen])

    def __len__(self) -> int:
        return len(self._seen) + len(self._unseen)


def plain_statistics(offered: Mapping[str, Any]) -> WorldStatistics:
    """Return what a world's `statistics()` gave as plain numbers, by name, or by name and agent."""
    return {
        str(name): {str(agent): float(one) for agent, one in value.items()}
        if isinstance(value, Mapping)
        else float(value)
        for name, value in offered.items()
    }


def actions_of(acting: Iterable[AgentId], actions: Mapping[AgentId, Action]) -> dict[AgentId, Action]:
    """Return the actions of those who act, in the order in which they do."""
    try:
        return {agent: actions[agent] for agent in acting}
    except KeyError as missing:
        raise UsageError(
            f"each agent that can act must have an action, got none for {missing.args[0]!r}; pass one for each of agents"
        ) from None


class AgentRules:
    """What a world with several agents must keep to in what it gives by agent."""

    def __init__(self, env: Any) -> None:
        possible = getattr(env, "possible_agents", None)
        if not possible:
            raise UsageError(f"a world must name all its possible_agents beforehand, and {env} does not; set it")
        self._known: frozenset[AgentId] = frozenset(possible)
        self._here: tuple[AgentId, ...] = ()

    def expect(self, here: tuple[AgentId, ...]) -> None:
        """Take note of who is there."""
        if here != self._here:
            self._check_known("agents", here)
            self._here = here

    def checked(
        self, rewards: Mapping[AgentId, Any], terminated: Mapping[AgentId, Any], truncated: Mapping[AgentId, Any]
    ) -> tuple[dict[AgentId, float], dict[AgentId, bool], dict[AgentId, bool]]:
        """Return rewards and ends, as numbers and truth values; all who were expected must have them."""
        if len(rewards) == len(terminated) == len(truncated) == len(self._here):
            gave: dict[AgentId, float] = {}
            ended: dict[AgentId, bool] = {}
            cut: dict[AgentId, bool] = {}
            for agent in self._here:  # the common case, which costs 0.5 µs for four agents
                try:
                    reward, end, limit = rewards[agent], terminated[agent], truncated[agent]
                except KeyError:
                    break
                if type(reward) is not float or type(end) is not bool or type(limit) is not bool:
                    break
                gave[agent], ended[agent], cut[agent] = reward, end, limit
            else:
                return gave, ended, cut
        self._check("reward", rewards, _NUMBER)
        self._check("terminated", terminated, _FLAG)
        self._check("truncated", truncated, _FLAG)
        return (
            {agent: float(reward) for agent, reward in rewards.items()},
            {agent: bool(flag) for agent, flag in terminated.items()},
            {agent: bool(flag) for agent, flag in truncated.items()},
        )

    def _check(self, name: str, values: Mapping[AgentId, Any], kind: _Scalar) -> None:
        for agent in self._here:
            if agent not in values:
                refuse(agent, f"must have a {name} in every step that it lives to see", values)
        self._check_known(name, values)
        for agent, value in values.items():
            _check_scalar(agent, name, value, kind)

    def _check_known(self, name: str, agents: Iterable[AgentId]) -> None:
        for agent in agents:
            if agent not in self._known:
                refuse(agent, "must be one of possible_agents", f"it in {name}")


def check_scalars(agent: AgentId, reward: Any, terminated: Any, truncated: Any) -> None:
    """Raise unless the reward of an agent is one number, and its ends are truth values."""
    _check_scalar(agent, "reward", reward, _NUMBER)
    _check_scalar(agent, "terminated", terminated, _FLAG)
    _check_scalar(agent, "truncated", truncated, _FLAG)


def _check_scalar(agent: AgentId, name: str, value: Any, kind: _Scalar) -> None:
    if type(value) not in kind.types and (np.ndim(value) or np.asarray(value).dtype.kind not in kind.kinds):
        refuse(agent, f"must have one {kind.name} as {name}", value)


def refuse(agent: AgentId, rule: str, value: Any) -> NoReturn:
    """Raise because what a world gave an agent breaks a rule."""
    raise InvalidOutput(f"agent {agent!r} {rule}, got {value!r}", Place("stepping", agent=agent))
