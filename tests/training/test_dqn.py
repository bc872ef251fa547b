"""DQN: values that are right, and agents that learn as if each were alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.budget import NativeThreads
from stretto.errors import InvalidSpace, UsageError
from stretto.seeding import SeedTree
from stretto.seeding.choices import Choices
from stretto.storage import Piece, TransitionBuffer
from stretto.storage.of_layout import buffer_of

torch = pytest.importorskip("torch")

from stretto.collection.collector import Trials  # noqa: E402
from stretto.collection.worlds import BlockWorlds  # noqa: E402
from stretto.policies.networks.values import ValueNetworkSettings, ValuePolicy  # noqa: E402
from stretto.training.blocks import learner_blocks  # noqa: E402
from stretto.training.learner_workers import Workplace  # noqa: E402
from stretto.training.learners.base import LearnerBlock, Metrics  # noqa: E402
from stretto.training.learners.dqn import Dqn  # noqa: E402
from stretto.training.learners.dqn_settings import DqnSettings  # noqa: E402
from stretto.training.loop import Loop, Pace  # noqa: E402
from stretto.training.schedules import Schedule  # noqa: E402
from stretto.training.sets import LearnerSet  # noqa: E402
from stretto.training.sides import SteppedHere  # noqa: E402
from stretto.workers.backends import PROCESS, SERIAL  # noqa: E402
from stretto.workers.base import Backend  # noqa: E402

SMALL = ValueNetworkSettings((32, 32))
RAINBOW: dict[str, Any] = {"n_steps": 3, "dueling": True, "priority_exponent": 0.6}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"double": False, "target_average": 0.1},
    "double, n-step, dueling, prioritized": RAINBOW,
    "quantiles": {"quantiles": 8},
    "all": RAINBOW | {"quantiles": 4},
}
RECURRENT: dict[str, dict[str, Any]] = {
    "gru": {"network": replace(SMALL, memory="gru", memory_width=16), "n_steps": 2},
    "lstm, quantiles": {"network": replace(SMALL, memory="lstm", memory_width=16), "quantiles": 4, "dueling": True},
}


def build(blocks: list[LearnerBlock], settings: DqnSettings, number: int) -> Dqn:
    return Dqn(blocks[number], settings)


def weights_after(world: str, settings: DqnSettings, size: int = 8, backend: Backend = SERIAL) -> np.ndarray:
    """Train for a few intervals with blocks of a size; return the weights of all agents, in their order."""
    with stretto.make_vec(world, 4, backend="serial", copy=False) as envs:
        worlds = BlockWorlds(envs)
        blocks = learner_blocks(worlds.kinds, 7, worlds.count, size)
        learners = LearnerSet(partial(build, blocks, settings), len(blocks), Workplace(backend, 2))
        loop = Loop(SteppedHere(worlds, Trials(7)), learners, Pace(settings.rows, 120))
        for _ in loop:
            pass
        loop.close()
        found = [one.policy.network.parameters for one in learners.learners]
        return np.concatenate([one.flat.numpy() for one in found])


@pytest.mark.parametrize("variant", (VARIANTS | RECURRENT).values(), ids=VARIANTS | RECURRENT)
def test_weights_do_not_depend_on_how_many_agents_are_computed_together(variant: dict[str, Any]) -> None:
    given = {"network": SMALL, "target_interval": 5, "chunk": 4, "burn_in": 2} | variant
    settings = DqnSettings(8, 4, 32, 200, 40, **given)
    together = weights_after("foundry_1", settings)
    for size in (1, 3):
        assert np.array_equal(weights_after("foundry_1", settings, size), together)


def test_weights_do_not_depend_on_where_agents_learn() -> None:
    settings = DqnSettings(8, 4, 32, 200, 40, target_interval=5, network=SMALL, **RAINBOW)
    assert np.array_equal(weights_after("foundry_1", settings, 2, PROCESS), weights_after("foundry_1", settings))


# ---- a ring of places, whose values are known ----

PLACES, DISCOUNT = 4, 0.5


def learner(agents: int, settings: DqnSettings, action_space: spaces.Space[Any], seen: Any = None) -> Dqn:
    """Return a learner of agents that see where they are, in a single lane."""
    names = tuple(f"agent_{k}" for k in range(agents))
    trees = tuple(SeedTree(3).child("learner", name) for name in names)
    return Dqn(LearnerBlock(names, seen or spaces.Discrete(PLACES), action_space, trees, 1), settings)


def episodes(actions: np.ndarray, *, truncated: bool = True, acting: Sequence[int] | None = None) -> Piece:
    """Walk around the ring: an action of 0 is a step and gives 1, others give nothing. Actions are (rows, agents, ...).

    An episode begins at place 0 and is over after as many actions as there are places; then its last observation has a row
    in which nobody acts. Only those who are `acting` ever act.
    """
    rows, agents = actions.shape[:2]
    gained = (actions == 0).reshape(rows, agents, -1).sum(-1)
    last = np.arange(rows) % (PLACES + 1) == PLACES
    acted = np.repeat(~last[:, None], agents, 1)
    if acting is not None:
        acted[:, [agent for agent in range(agents) if agent not in acting]] = False
    gained[~acted] = 0
    before = np.cumsum(gained, 0) - gained
    begun = before[np.arange(rows) // (PLACES + 1) * (PLACES + 1)]  # when the episode of a row began
    ended = np.roll(last, -1)[:, None] & acted
    never = np.zeros_like(ended)
    return Piece(
        observations=((before - begun) % PLACES)[:, None],
        actions=actions[:, None],
        acted=acted[:, None],
        rewards=gained.astype(np.float32)[:, None],
        terminated=(never if truncated else ended)[:, None],
        truncated=(ended if truncated else never)[:, None],
        next_observations=np.zeros((1, agents), np.int64),
    )


ROWS = 8 * (PLACES + 1)


def known(**variant: Any) -> DqnSettings:
    shared: dict[str, Any] = {"learning_starts": 1, "discount": DISCOUNT, "target_interval": 15, "network": SMALL}
    return DqnSettings(ROWS, 60, 64, 20 * ROWS, learning_rate=Schedule(3e-3), **(shared | variant))


def learn(one: Dqn, pieces: Iterable[Piece]) -> list[Sequence[Metrics]]:
    """Let a learner learn after each piece."""
    found = []
    with buffer_of(one.layout) as buffer, NativeThreads(1).capped():
        for piece in pieces:
            buffer.extend(piece)
            with buffer.snapshot() as seen:
                found.append(one.learn(seen, 0.5))
    return found


def values_of(one: Dqn) -> np.ndarray:
    """Return the values of all outputs at each place."""
    with torch.no_grad():
        found = one.policy.values.means(
            one.policy.network.see(one.policy.network.inputs.rows(np.arange(PLACES)[None]), None)[0]
        )
    return np.asarray(found[0].numpy())


@pytest.mark.parametrize("variant", [*VARIANTS.values(), {"n_steps": 3}], ids=[*VARIANTS, "n-step"])
@pytest.mark.parametrize("truncated", [True, False])
def test_a_time_limit_cuts_nothing_off_the_values_and_an_end_does(variant: dict[str, Any], truncated: bool) -> None:
    # There is one action. After a time limit walking on would have given 1 for ever.
    steps_left = np.full(PLACES, np.inf) if truncated else np.arange(PLACES, 0, -1)
    one = learner(1, known(**variant), spaces.Discrete(1))
    learn(one, [episodes(np.zeros((ROWS, 1), np.int64), truncated=truncated)] * 7)
    assert np.allclose(values_of(one)[:, 0], (1 - DISCOUNT**steps_left) / (1 - DISCOUNT), atol=0.1)


def walked(one: Dqn, piece: Piece) -> tuple[Piece, np.ndarray]:
    """Return a piece with what the actor of one agent remembers before its decisions, and the values of its actions."""
    network, states = one.policy.network, torch.zeros(1, 1, one.policy.network.state_width)
    memory, values = np.zeros((ROWS, 1, 1, states.shape[-1]), np.float32), []
    for row in range(ROWS):
        states = states * (row % (PLACES + 1) > 0)
        if piece.acted[row, 0, 0]:
            memory[row, 0, 0] = states[0, 0]
        with torch.no_grad():
            seen, after = network.see(network.inputs.rows(piece.observations[row].T), states)
            values.append(one.policy.values.means(seen)[0, 0].numpy())
        states = after if piece.acted[row, 0, 0] else states
    return replace(piece, extras={"memory": memory}), np.array(values)


@pytest.mark.parametrize("variant", RECURRENT.values(), ids=RECURRENT)
@pytest.mark.parametrize("truncated", [True, False])
def test_a_memory_tells_what_is_left_of_an_episode_that_looks_always_the_same(
    variant: dict[str, Any], truncated: bool
) -> None:
    one = learner(1, replace(known(**variant, chunk=8, burn_in=3), updates=30), spaces.Discrete(1))
    piece = episodes(np.zeros((ROWS, 1), np.int64), truncated=truncated)
    piece = replace(piece, observations=np.zeros_like(piece.observations))
    learn(one, (walked(one, piece)[0] for _ in range(10)))
    steps_left = np.full(PLACES, np.inf) if truncated else np.arange(PLACES, 0, -1)
    assert np.allclose(walked(one, piece)[1][:PLACES, 0], (1 - DISCOUNT**steps_left) / (1 - DISCOUNT), atol=0.1)


def test_a_memory_needs_rows_for_its_chunks_and_all_chunks_are_equally_likely() -> None:
    settings = known(**RECURRENT["gru"], chunk=ROWS)
    with pytest.raises(UsageError, match=f"at least burn_in \\+ chunk rows, {ROWS + 8}, at a time, got rows={ROWS};"):
        learner(1, settings, spaces.Discrete(1))
    with pytest.raises(UsageError, match=r"draws all chunks equally often, got priority_exponent=0.6; leave it out"):
        learner(1, replace(settings, chunk=4, priority_exponent=0.6), spaces.Discrete(1))


@pytest.mark.parametrize("variant", [{}, {"dueling": True, "priority_exponent": 0.6}, {"quantiles": 8}], ids=str)
def test_the_value_of_an_action_is_that_of_the_best_ones_after_it(variant: dict[str, Any]) -> None:
    one = learner(1, known(**variant), spaces.Discrete(3, start=0))
    stream = np.random.default_rng(0)
    learn(one, [episodes(stream.integers(0, 3, (ROWS, 1))) for _ in range(10)])
    assert np.allclose(values_of(one)[:, :3], [2, 1, 1], atol=0.15)


def test_each_branch_of_a_multi_discrete_space_has_its_own_values() -> None:
    one = learner(1, known(dueling=True), spaces.MultiDiscrete([3, 2]))
    stream = np.random.default_rng(0)
    learn(one, [episodes(stream.integers(0, [3, 2], (ROWS, 1, 2))) for _ in range(10)])
    # What the other branch gives on average, 1/2 or 1/3, and half of what follows: 17/12 in every step.
    first, second = values_of(one)[:, :3], values_of(one)[:, 8:10]
    assert np.allclose(first, 17 / 12 + np.array([1.5, 0.5, 0.5]), atol=0.35)
    assert np.allclose(second, 17 / 12 + np.array([4 / 3, 1 / 3]), atol=0.35)


# ---- who learns, and who does not ----


def states_of(one: Dqn) -> list[dict[str, Any]]:
    """Return all that is an agent's own, agent by agent."""
    state, count = one.state(), len(one.policy.world.agents)
    parts = {
        f"{part} {name}": value
        for part, mine in state.items()
        if isinstance(mine, dict)
        for name, value in mine.items()
    }
    arrays = {name: value for name, value in {**parts, **state}.items() if isinstance(value, np.ndarray)}
    found = [{name: array.reshape(count, -1)[agent].copy() for name, array in arrays.items()} for agent in range(count)]
    return [mine | {"stream": stream} for mine, stream in zip(found, state["streams"], strict=True)]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("variant", [{}, RAINBOW, {"quantiles": 4, "target_average": 0.1}], ids=str)
def test_an_agent_that_did_not_act_or_has_seen_too_little_is_not_moved(variant: dict[str, Any]) -> None:
    settings = replace(known(**variant), updates=3, learning_starts=30)
    one = learner(3, settings, spaces.Discrete(3))
    before = states_of(one)
    some = np.random.default_rng(1).integers(0, 3, (2, ROWS, 3))
    with TransitionBuffer(one.layout) as buffer, NativeThreads(1).capped():

        def learns(piece: Piece) -> list[dict[str, Any]]:
            buffer.extend(piece)
            with buffer.snapshot() as seen:
                one.learn(seen, 0.5)
            return states_of(one)

        first = learns(episodes(some[0], acting=[0, 1]))
        second = learns(episodes(some[1], acting=[0]))
        third = learns(episodes(some[1][:20], acting=[0, 2]))
    weights = [[state[agent]["network weights"] for agent in range(3)] for state in (before, first, second, third)]
    moved = [[not np.array_equal(x, y) for x, y in pairwise(column)] for column in zip(*weights, strict=True)]
    assert moved == [[True, True, True], [True, False, False], [False, False, False]]
    for agent, states in ((1, (first, second)), (1, (second, third)), (2, (before, third))):
        # The priorities of what the buffer has taken in and dropped are not the agent's doing.
        old, new = ({k: v for k, v in state[agent].items() if "experience" not in k} for state in states)
        assert same(old, new)


def test_an_agent_learns_the_same_whatever_the_others_see_and_do() -> None:
    settings = replace(known(**RAINBOW), updates=3)
    stream = np.random.default_rng(1)
    some, others = stream.integers(0, 3, (3, ROWS, 2)), stream.integers(0, 3, (3, ROWS, 1))
    found = []
    for third, acting in ((some[:, :, :1], [0, 1, 2]), (others, [0, 1, 2]), (others, [0, 1])):
        one = learner(3, settings, spaces.Discrete(3))
        learn(one, [episodes(np.concatenate(both, 1), acting=acting) for both in zip(some, third, strict=True)])
        found.append(states_of(one)[:2])
    assert all(same(mine, first) for two in found[1:] for mine, first in zip(two, found[0], strict=True))


def test_a_learner_goes_on_from_its_state_as_if_nothing_had_happened() -> None:
    settings = replace(known(**RAINBOW, quantiles=4), updates=3)
    some = [episodes(actions) for actions in np.random.default_rng(1).integers(0, 3, (4, ROWS, 2))]
    one, other = (learner(2, settings, spaces.Discrete(3)) for _ in range(2))
    with TransitionBuffer(one.layout) as buffer, NativeThreads(1).capped():
        for number, piece in enumerate(some):
            buffer.extend(piece)
            with buffer.snapshot() as seen:
                one.learn(seen, 0.5)
                if number > 1:
                    other.learn(seen, 0.5)
            if number == 1:
                other.load_state(copy.deepcopy(one.state()))
    assert all(same(*pair) for pair in zip(states_of(one), states_of(other), strict=True))


def test_figures_are_those_of_each_agent() -> None:
    one = learner(2, replace(known(), learning_starts=40), spaces.Discrete(3))
    first, second = learn(one, [episodes(np.zeros((ROWS, 2), np.int64), acting=[0])] * 2)
    assert [set(mine) for mine in first] == [{"updates", "epsilon", "buffer"}] * 2
    assert set(second[0]) == {"updates", "epsilon", "buffer", "loss", "value", "error", "gradient"}
    assert second[0]["buffer"] == 64 / one.layout.steps
    assert second[1]["buffer"] == 0


def test_a_loss_that_is_not_finite_names_agent_and_update() -> None:
    piece = episodes(np.zeros((ROWS, 2), np.int64))
    piece.rewards[3, 0, 1] = np.nan
    one = learner(2, known(priority_exponent=None), spaces.Discrete(1))
    learn(one, [piece])
    [failure] = one.failures
    assert (failure.agent, failure.update, failure.reason) == ("agent_1", 1, "its loss is not finite")
    assert np.isnan(failure.batch["rewards"]).any()


# ---- acting ----


def test_a_space_without_single_actions_is_refused_with_a_learner_that_takes_it() -> None:
    with pytest.raises(InvalidSpace, match=r"got Box\(.*\); use ppo$"):
        learner(1, known(), spaces.Box(-1, 1, (2,)))


MASKED = spaces.Dict({"place": spaces.Discrete(PLACES), "action_mask": spaces.MultiBinary(5)})


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_actions_that_are_ruled_out_are_never_taken_and_all_others_are(epsilon: float) -> None:
    one = learner(2, known(), spaces.MultiDiscrete([3, 2], start=[1, 0]), MASKED)
    one.policy.epsilon = epsilon
    masks = np.array([[0, 1, 1, 1, 1], [1, 0, 0, 0, 1], [0, 0, 0, 0, 1]], np.int8)
    rows = 240
    seen = {"place": np.zeros((2, rows), np.int64), "action_mask": np.tile(masks, (2, rows // 3, 1))}
    keys = np.arange(2 * rows, dtype=np.uint64).reshape(2, rows)
    taken = one.policy.step_block(seen, None, Choices(keys, np.zeros(keys.shape, np.int64))).actions
    found = [{tuple(action) for action in taken[:, k::3].reshape(-1, 2).tolist()} for k in range(3)]
    allowed = [{(2, 0), (2, 1), (3, 0), (3, 1)}, {(1, 1)}, {(1, 1), (2, 1), (3, 1)}]
    assert found == allowed if epsilon else all(few <= all_of for few, all_of in zip(found, allowed, strict=True))


def test_the_best_action_after_a_step_is_one_that_is_allowed_there() -> None:
    one = learner(1, known(), spaces.Discrete(2), spaces.Dict(MASKED.spaces | {"action_mask": spaces.MultiBinary(2)}))
    stream = np.random.default_rng(0)

    def masked(piece: Piece) -> Piece:
        # Whoever may step knows it, and what is written of an action of 0 is one of 1 wherever it is not allowed.
        allowed = np.ones((*piece.observations.shape, 2), np.int8)
        allowed[..., 0] = 0
        follows = {"place": piece.next_observations, "action_mask": np.ones((1, 1, 2), np.int8)}
        return replace(
            piece, observations={"place": piece.observations, "action_mask": allowed}, next_observations=follows
        )

    # Nobody may ever step, so that what follows is worth nothing, although steps that were done gave 1.
    learn(one, [masked(episodes(stream.integers(0, 2, (ROWS, 1)))) for _ in range(8)])
    with torch.no_grad():
        seen = {"place": np.arange(PLACES)[None], "action_mask": np.ones((1, PLACES, 2), np.int8)}
        values = one.policy.values.means(one.policy.network.inputs.rows(seen))[0, :, :2].numpy()
    assert np.allclose(values, [1, 0], atol=0.15)


def test_a_policy_that_is_described_and_given_its_state_acts_the_same() -> None:
    one = learner(2, known(dueling=True, quantiles=4), spaces.Discrete(3)).policy
    one.network.parameters.flat.add_(0.1)
    other = ValuePolicy.described(one.world, [SeedTree(0)] * 2, json.loads(json.dumps(one.description())))
    other.load_state(one.state())
    seen, choices = np.tile(np.arange(PLACES), (2, 1)), Choices(np.zeros((2, PLACES), np.uint64), np.zeros((2, PLACES)))
    one.greedy = True
    assert np.array_equal(one.step_block(seen, None, choices).actions, other.step_block(seen, None, choices).actions)
    with torch.no_grad():
        rows = one.network.inputs.rows(seen)
        assert torch.equal(one.values.means(rows), other.values.means(rows))
