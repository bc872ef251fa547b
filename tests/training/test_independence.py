"""Agents that learn in one block: each is, to the bit, what it is alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.training.fixed_experience import block_of, learn, piece_of

torch = pytest.importorskip("torch")

from stretto.budget import NativeThreads  # noqa: E402
from stretto.policies.networks.network import NetworkSettings  # noqa: E402
from stretto.training.learners.ppo import Ppo  # noqa: E402
from stretto.training.learners.ppo_settings import PpoSettings  # noqa: E402
from stretto.training.schedules import Schedule  # noqa: E402

ROWS = 32
FIVE, PICTURE = spaces.Box(-1, 1, (5,)), spaces.Box(0, 255, (20, 20, 3), np.uint8)
BOTH = spaces.Dict({"picture": PICTURE, "numbers": FIVE})
CHOICE, NUMBERS = spaces.Discrete(3), spaces.Box(-1, 1, (3,))

KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "choices": (FIVE, CHOICE, {}),
    "a wide batch": (FIVE, CHOICE, {"batch": 128}),
    "an odd batch": (FIVE, CHOICE, {"batch": 24}),
    "numbers": (FIVE, NUMBERS, {"normalize_observations": True, "normalize_rewards": True}),
    "values that are clipped": (
        FIVE,
        CHOICE,
        {"clip_values": 0.2, "most_divergence": 0.01, "learning_rate": Schedule(3e-3)},
    ),
    "a GRU": (FIVE, CHOICE, {"network": NetworkSettings((64,), memory="gru", memory_width=20), "sequence": 8}),
    "an LSTM": (FIVE, NUMBERS, {"network": NetworkSettings((64,), memory="lstm"), "sequence": 8}),
    "images": (BOTH, CHOICE, {"batch": 32, "epochs": 1, "normalize_observations": True}),
}


@pytest.fixture(autouse=True)
def one_native_thread() -> Any:
    with NativeThreads(1).capped():
        yield


def ppo_of(agents: Any, kind: str) -> Ppo:
    seen, done, changes = KINDS[kind]
    settings = {"rows": ROWS, "batch": 64, "epochs": 5, "entropy": Schedule(0.01), **changes}
    return Ppo(block_of(agents, seen, done), PpoSettings(**settings))


def learned(learner: Ppo, agents: Any, *, idle: tuple[int, ...] = (), other: tuple[int, ...] = ()) -> dict[int, Any]:
    """Learn from two segments; return each agent's figures, and all that it is after that.

    Those that are `idle` do not act; the `other` ones saw something else.
    """
    for number in range(2):
        pieces = [
            piece_of(learner, agent, number + 100 * (agent in other), ROWS, acts=agent not in idle) for agent in agents
        ]
        metrics = learn(learner, pieces)
    return {agent: [metrics[k], *everything(learner, k)] for k, agent in enumerate(agents)}


def everything(learner: Ppo, k: int) -> list[Any]:
    """Return the arrays that an agent is, and where its stream stands."""
    state = learner.state()
    parts = [part for name, part in state.items() if name not in ("streams", "updates", "rewards")]
    arrays = [array[k].copy() for part in parts for array in part.values()]
    return [*arrays, state["streams"][k]]


def same(one: list[Any], other: list[Any]) -> bool:
    return all(
        np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs
        for mine, theirs in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_learns_the_same_in_blocks_of_eight_three_and_one(kind: str) -> None:
    together = learned(ppo_of(range(8), kind), range(8))
    for agents in (range(3), range(5, 8), range(4, 5)):
        for agent, alone in learned(ppo_of(agents, kind), agents).items():
            assert same(alone, together[agent])
    assert not same(together[0], together[1])


@pytest.mark.parametrize("kind", ["choices", "a GRU"])
def test_what_one_agent_sees_moves_no_other(kind: str) -> None:
    before, after = (learned(ppo_of(range(3), kind), range(3), other=other) for other in ((), (1,)))
    assert [same(before[agent], after[agent]) for agent in range(3)] == [True, False, True]


@pytest.mark.parametrize("kind", ["choices", "a GRU"])
def test_an_agent_that_does_not_act_is_not_moved(kind: str) -> None:
    still = everything(ppo_of(range(3), kind), 2)
    found = learned(ppo_of(range(3), kind), range(3), idle=(2,))
    assert same(found[2][1:], still)
    everybody = learned(ppo_of(range(3), kind), range(3))
    assert same(found[0], everybody[0])
    assert same(found[1], everybody[1])


def test_a_block_in_which_nobody_acts_learns_nothing() -> None:
    fresh, learner = ppo_of(range(1), "choices"), ppo_of(range(1), "choices")
    found = learned(learner, range(1), idle=(0,))
    assert same(found[0][1:], everything(fresh, 0))


def test_an_agent_whose_policy_has_changed_enough_stops_while_others_go_on() -> None:
    learner = ppo_of(range(8), "values that are clipped")
    steps = [figures["updates"] for figures, *_ in learned(learner, range(8)).values()]
    assert 0 < min(steps) < max(steps)
