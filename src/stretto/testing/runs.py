"""Playing a vector environment with given actions, and keeping all that it gave."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.testing.values import ContractBroken, difference


@dataclass(slots=True)
class Run:
    """All that a vector environment gave: the first batch, and one entry a step.

    A step's entry ends with what came after it: who can act and who is alive in a multi-agent one, and, with autoreset
    disabled, the batch that the reset of the slots gave whose episode was over.
    """

    moments: list[Any] = field(default_factory=list)

    @property
    def episodes(self) -> int:
        """How many episodes ended; comparing runs in which none did shows little."""
        return sum(int(np.count_nonzero(_over(moment))) for moment in self.moments[1:])

    def check_same(self, other: Run, what: str) -> None:
        """Raise `ContractBroken` where the two part."""
        if parted := where_parted(self.moments, other.moments):
            raise ContractBroken(f"{what} part at {': '.join(parted)}")


def where_parted(moments: Sequence[Any], others: Sequence[Any]) -> tuple[str, str] | None:
    """Return the first of two runs' moments that are not the same, and what differs in it; `None` if all are."""
    for number, (one, other) in enumerate(zip(moments, others, strict=True)):
        if found := difference(one, other):
            return f"step {number}" if number else "the reset", found
    return None


def play(
    envs: Any,
    actions: Sequence[Any],
    seed: int | list[int] | None = 0,
    *,
    before_step: Callable[[int], None] | None = None,
) -> Run:
    """Reset `envs` with `seed`, step it with `actions`, and return copies of all that it gave.

    `before_step(number)` is called before each step, which is when tests kill workers. Works for Gymnasium's own
    vector environments too. With autoreset disabled, slots whose episode is over are reset by mask after each step.
    """
    run = Run([copy.deepcopy((*envs.reset(seed=seed), _masks(envs)))])
    disabled = envs.metadata.get("autoreset_mode") is AutoresetMode.DISABLED
    for number, action in enumerate(actions):
        if before_step is not None:
            before_step(number)
        moment = (*envs.step(action), _masks(envs))
        over = _over(moment) if disabled else None
        if over is not None and over.any():
            moment = copy.deepcopy(moment)
            moment = (*moment, *envs.reset(options={"reset_mask": over}), _masks(envs))
        run.moments.append(copy.deepcopy(moment))
    return run


def sample_actions(envs: Any, count: int, seed: int = 0) -> list[Any]:
    """Draw batches of random actions, the same ones for the same seed and spaces."""
    if not isinstance(envs, MultiAgentVectorEnv):
        space = copy.deepcopy(envs.action_space)
        space.seed(seed)
        return [space.sample() for _ in range(count)]
    spaces = {agent: envs.action_space(agent) for agent in envs.possible_agents}
    for number, agent_space in enumerate(spaces.values()):
        agent_space.seed(seed + number)
    return [{agent: agent_space.sample() for agent, agent_space in spaces.items()} for _ in range(count)]


def is_single(envs: Any) -> bool:
    """Whether the worlds have one agent each."""
    return isinstance(envs, gymnasium.vector.VectorEnv)


def _masks(envs: Any) -> Any:
    return (dict(envs.mask), dict(envs.alive)) if isinstance(envs, MultiAgentVectorEnv) else None


def _over(moment: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return the slots whose episode a step ended: both flags, or where nobody can act."""
    infos, masks = moment[4], moment[5]
    if masks is None:
        over = np.logical_or(moment[2], moment[3])
    else:
        over = infos["_final_obs"] if "_final_obs" in infos else ~np.any(list(masks[0].values()), axis=0)
    return np.asarray(over, np.bool_)
