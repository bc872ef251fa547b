"""Rollouts as datasets of Minari, Farama's format for offline reinforcement learning, and such datasets as rollouts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.adapters.agents import as_agents
from stretto.collection.description import OF_WORLD, mission_of
from stretto.collection.experience import Experience, Rollout
from stretto.collection.rollouts import Rollouts
from stretto.core import AgentId
from stretto.errors import UsageError
from stretto.policies.states import map_state
from stretto.spaces import Array

if TYPE_CHECKING:
    from minari import MinariDataset
    from minari.data_collector import EpisodeBuffer

AGENT = "agent_0"
"""What the agent of a dataset is called, as in any world with a single one."""


def write_dataset(
    rollouts: Sequence[Rollout],
    dataset_id: str,
    world: Any,
    *,
    agent: AgentId | None = None,
    about: dict[str, Any] | None = None,
    **options: Any,
) -> MinariDataset:
    """Write rollouts as a dataset of Minari, where Minari keeps its own; return it.

    Each episode of a rollout is an episode of the dataset, with the rollout's seed, and its task among the options.

    Args:
        rollouts: what `stretto.collect` or `stretto.load_rollouts` returns.
        dataset_id: as Minari wants it: `cartpole/random-v0`.
        world: the world of the rollouts, as of `make_vec`. Minari can make it again if Gymnasium knows its id.
        agent: whose experience is written, where there are several.
        about: what Minari keeps beside it: `algorithm_name`, `author`, `description` and so on, as of its
            `create_dataset_from_buffers`.
        options: as of `make_vec`: `cogs`, `variants`, `env_kwargs` and so on.

    Raises:
        UsageError: if there is no such agent, or if it could not act in every step.
    """
    minari = _minari()
    if unknown := options.keys() - set(OF_WORLD):
        raise UsageError(f"options must be about the world, got {', '.join(unknown)}; there are {', '.join(OF_WORLD)}")
    env = mission_of(world, options).make()
    try:
        spec = as_agents(env).spec()
        chosen = _agent(spec.agents, agent)
        buffers = [buffer for rollout in rollouts for buffer in _episodes(rollout, chosen)]
        if not buffers:
            raise UsageError("a dataset has one episode or more, and there are no rollouts; collect some")
        numbered = [replace(buffer, id=number) for number, buffer in enumerate(buffers)]
        known = {"env": env} if getattr(env, "spec", None) is not None else {}
        # Minari makes images smaller unless it is told not to; a dataset has what agents saw.
        exactly = {"jpeg_encoding": False}
        seen, done = spec.observation_spaces[chosen], spec.action_spaces[chosen]
        with warnings.catch_warnings():
            # It recommends to name an author, a description and so on: whoever calls this knows that from here.
            warnings.filterwarnings("ignore", category=UserWarning, module="minari")
            found: MinariDataset = minari.create_dataset_from_buffers(
                dataset_id, numbered, observation_space=seen, action_space=done, **known, **exactly, **(about or {})
            )
        return found
    finally:
        env.close()


def _agent(agents: Sequence[AgentId], chosen: AgentId | None) -> AgentId:
    if chosen is None and len(agents) == 1:
        return agents[0]
    if chosen is None or chosen not in agents:
        raise UsageError(
            f"a dataset has the experience of one agent, got {chosen!r} where there are {', '.join(agents)}; name one of them"
        )
    return chosen


def _episodes(rollout: Rollout, agent: AgentId) -> Iterator[EpisodeBuffer]:
    from minari.data_collector import EpisodeBuffer

    if agent not in rollout.agents:
        raise UsageError(f"these rollouts have no agent {agent!r}, but {', '.join(rollout.agents)}; name their world")
    mine, lasts = rollout.agents[agent], rollout.last_observations_of(agent)
    if not mine.acted.all():
        raise UsageError(
            f"Minari's episodes have an action in every step, and {agent} could not act in all of rollout {rollout.index}; "
            f"choose another agent, or keep these rollouts as they are"
        )
    options = None if rollout.task is None else {"task": rollout.task}
    for number, steps in enumerate(rollout.episodes):

        def with_last(part: Array, last: Array, number: int = number, steps: slice = steps) -> Array:
            return np.concatenate([part[steps], last[number : number + 1]])

        yield EpisodeBuffer(
            seed=rollout.seed if number == 0 else None,
            options=options,
            observations=map_state(with_last, mine.observations, lasts),
            actions=map_state(lambda part, steps=steps: part[steps], mine.actions),
            rewards=mine.rewards[steps],
            terminations=mine.terminated[steps],
            truncations=mine.truncated[steps],
        )


def read_dataset(dataset: MinariDataset | str) -> Rollouts:
    """Return the episodes of a dataset of Minari, or of the one with this id, as rollouts of one agent.

    Rollout *i* is the dataset's *i*-th episode. Tasks are what `write_dataset` wrote among the options.
    """
    found = _loaded(dataset) if isinstance(dataset, str) else dataset
    episodes = found.iterate_episodes()
    facts = found.storage.get_episode_metadata(found.episode_indices)
    return Rollouts([_rollout(i, one, about) for i, (one, about) in enumerate(zip(episodes, facts, strict=True))])


def _loaded(dataset_id: str) -> MinariDataset:
    minari = _minari()
    try:
        found: MinariDataset = minari.load_dataset(dataset_id)
    except (FileNotFoundError, ValueError) as error:  # a name that Minari cannot read is a ValueError
        raise UsageError(
            f"datasets of Minari are read from this machine, got {dataset_id}, which is not there ({error}); fetch it with: "
            f"minari download {dataset_id}"
        ) from None
    return found


def _rollout(index: int, episode: Any, about: Mapping[str, Any]) -> Rollout:
    steps = len(episode)

    def one_more(part: Any) -> Array:
        """Return a row for each step, and one for the last observation, in which nobody acts; for one agent."""
        rows = np.asarray(part)
        filled = rows if len(rows) > steps else np.concatenate([rows, np.zeros_like(rows[:1])])
        return filled[:, None]

    acted = np.ones((steps + 1, 1), np.bool_)
    acted[-1] = False
    kind = Experience(
        (AGENT,),
        map_state(one_more, episode.observations),
        map_state(one_more, episode.actions),
        acted,
        one_more(episode.rewards).astype(np.float64),
        one_more(episode.terminations).astype(np.bool_),
        one_more(episode.truncations).astype(np.bool_),
    )
    seed, options = about.get("seed"), about.get("options") or {}
    return Rollout(index, -1 if seed is None else int(seed), options.get("task"), (steps,), (kind,))


def _minari() -> Any:
    if find_spec("minari") is None:
        raise UsageError(
            "datasets of Minari need Minari, which this Python does not have; pip install 'stretto[minari]'"
        )
    import minari

    return minari
