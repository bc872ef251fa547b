"""A recurrent network: every row is computed as if it were alone, and weights come from a seed or a harmless file."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from stretto.checkpoint import atomic_write
from stretto.core import WorldSpec
from stretto.errors import InvalidSpace, UsageError
from stretto.policies.loading import load_policy
from stretto.policies.neural import HIDDEN, Neural
from stretto.policies.spec import parse_policy
from stretto.safetensors import safetensors

torch = pytest.importorskip("torch")

SEEN = spaces.Box(-1, 1, (7, 21))
NESTED = spaces.Dict(place=spaces.Discrete(4), view=spaces.Tuple([spaces.Box(0, 1, (2, 3)), spaces.MultiBinary(2)]))
ACTION_SPACES = [
    spaces.Discrete(3, start=2),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [1, 1]]),
    spaces.MultiBinary(4),
    spaces.Box(-1, 3, (2,)),
    spaces.Box(0, np.inf, (2,)),
    spaces.Box(-np.inf, np.inf, ()),
    spaces.Box(0, 255, (2,), np.uint8),
    spaces.Dict(move=spaces.Discrete(3), arm=spaces.Tuple([spaces.Box(0, 1, (1,)), spaces.MultiBinary(2)])),
]


def world_of(seen=SEEN, action=ACTION_SPACES[0], agents=("agent",)):
    return WorldSpec(tuple(agents), dict.fromkeys(agents, seen), dict.fromkeys(agents, action))


def agent_of(policy, seed=0, agent="agent"):
    made = policy.agent_policy(agent)
    made.reset(np.random.default_rng(seed))
    return made


def observations(space, count, seed=0):
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def actions(policy, seen=SEEN, count=20, seed=0):
    agent = agent_of(policy, seed)
    return [agent.step(observation) for observation in observations(seen, count)]


def play_among(policy, size, position, company_seed):
    """Play three steps in a batch of `size`; return the actions and hidden states of the one at `position`."""
    agents = [agent_of(policy, 100 * company_seed + i) for i in range(size)]
    agents[position] = agent_of(policy, 5)
    moments = []
    for step, mine in enumerate(observations(SEEN, 3, seed=9)):
        seen = observations(SEEN, size, seed=10 * company_seed + step)
        seen[position] = mine
        chosen = policy.step_batch(agents, seen)
        moments.append((repr(chosen[position]), agents[position].hidden.tobytes()))
    return moments


def weights_for(policy, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in policy.shapes.items()}


@pytest.mark.parametrize("action", [ACTION_SPACES[0], ACTION_SPACES[3]], ids=str)
@pytest.mark.parametrize("size", [2, 3, 8, 33])
def test_an_agent_s_action_and_state_are_the_same_bits_whatever_the_other_rows_hold_and_wherever_it_stands(
    size, action
):
    policy = Neural(world_of(action=action))
    expected = play_among(policy, size, 0, company_seed=1)
    for position in {0, 1, size // 2, size - 1}:
        for company_seed in (1, 2):
            assert play_among(policy, size, position, company_seed) == expected


def test_an_agent_alone_does_the_same_as_in_a_batch():
    policy = Neural(world_of())
    assert play_among(policy, 1, 0, 1) == play_among(policy, 8, 3, 2)


def test_large_observations_are_computed_in_parts_with_the_same_bits(monkeypatch):
    policy = Neural(world_of())
    expected = play_among(policy, 8, 3, 1)
    monkeypatch.setattr("stretto.policies.neural.MOST_TERMS", 3 * HIDDEN * 147)
    assert play_among(policy, 8, 3, 1) == expected


@pytest.mark.parametrize("action", ACTION_SPACES, ids=str)
def test_every_width_is_whole_vectors_and_files_have_those_that_count(action):
    policy = Neural(world_of(NESTED, action))
    assert all(width % 8 == 0 for values in policy._weights.values() for width in values.shape)
    assert policy.shapes["encoder.weight"] == (HIDDEN, spaces.flatdim(NESTED))


def test_the_caller_s_threads_of_torch_are_as_before():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first = actions(Neural(world_of()))
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        assert actions(Neural(world_of())) == first
    finally:
        torch.set_num_threads(before)


def test_it_computes_what_torch_s_own_layers_compute(tmp_path):
    policy = Neural(world_of(), deterministic=True)
    weights = weights_for(policy)
    atomic_write(tmp_path / "w.safetensors", safetensors(weights))
    policy.load(str(tmp_path / "w.safetensors"))
    layers = torch.nn.ModuleDict(
        {
            "encoder": torch.nn.Linear(147, HIDDEN),
            "gru": torch.nn.GRUCell(HIDDEN, HIDDEN),
            "head": torch.nn.Linear(HIDDEN, 3),
        }
    )
    layers.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()})
    agent, hidden = agent_of(policy), torch.zeros(1, HIDDEN)
    with torch.no_grad():
        for observation in observations(SEEN, 5):
            action = agent.step(observation)
            row = torch.from_numpy(observation.reshape(1, -1))
            hidden = layers["gru"](torch.tanh(layers["encoder"](row)), hidden)
            np.testing.assert_allclose(agent.hidden, hidden[0].numpy(), atol=1e-5)
            assert action == 2 + int(layers["head"](hidden).argmax())


def test_the_seed_decides_the_weights_and_torch_s_global_generator_does_not():
    torch.manual_seed(1)
    first = actions(Neural(world_of(), seed=3))
    torch.manual_seed(2)
    assert actions(Neural(world_of(), seed=3)) == first
    assert actions(Neural(world_of(), seed=4)) != first


def test_the_agent_s_own_generator_decides_the_draws():
    policy = Neural(world_of())
    assert actions(policy, seed=1) == actions(policy, seed=1)
    assert actions(policy, seed=1) != actions(policy, seed=2)


def test_the_best_action_needs_no_generator():
    policy = Neural(world_of(), deterministic=True)
    assert actions(policy, seed=1) == actions(policy, seed=2)


def test_what_was_seen_before_is_remembered_until_the_next_episode():
    policy = Neural(world_of())
    agent = agent_of(policy)
    one, two = observations(SEEN, 2)
    agent.step(one)
    first = agent.hidden
    agent.step(two)
    agent.step(one)
    assert not np.array_equal(agent.hidden, first)
    agent.reset(np.random.default_rng(0))
    agent.step(one)
    assert np.array_equal(agent.hidden, first)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("action", ACTION_SPACES, ids=str)
def test_actions_of_every_common_kind_are_in_their_space(action, deterministic):
    policy = Neural(world_of(NESTED, action), deterministic=deterministic)
    assert all(action.contains(chosen) for chosen in actions(policy, NESTED))


def test_draws_follow_the_softmax_of_the_outputs(tmp_path):
    policy = Neural(world_of())
    weights = {name: np.zeros(shape, np.float32) for name, shape in policy.shapes.items()}
    weights["head.bias"] = np.log([0.7, 0.2, 0.1]).astype(np.float32)
    atomic_write(tmp_path / "w.safetensors", safetensors(weights))
    policy.load(str(tmp_path / "w.safetensors"))
    agents = [agent_of(policy, seed) for seed in range(2000)]
    chosen = policy.step_batch(agents, observations(SEEN, 1) * 2000)
    assert abs(np.bincount(chosen)[2:] / 2000 - [0.7, 0.2, 0.1]).max() < 0.05


def test_agents_whose_spaces_differ_share_one_network():
    world = WorldSpec(
        ("near", "far"),
        {"near": spaces.Box(-1, 1, (3,)), "far": spaces.Box(-1, 1, (9,))},
        {"near": spaces.Discrete(2), "far": spaces.Box(-1, 1, (4,))},
    )
    policy = Neural(world)
    agents = [agent_of(policy, 0, agent) for agent in world.agents]
    chosen = policy.step_batch(agents, [world.observation_spaces[agent].sample() for agent in world.agents])
    assert all(world.action_spaces[agent].contains(action) for agent, action in zip(world.agents, chosen, strict=True))


def test_spaces_that_it_cannot_play_are_refused():
    with pytest.raises(InvalidSpace, match="observations can be flattened, got Sequence"):
        Neural(world_of(seen=spaces.Sequence(spaces.Discrete(2))))
    with pytest.raises(InvalidSpace, match=r"actions are Discrete, .* got Text"):
        Neural(world_of(action=spaces.Text(3)))


def test_a_spec_names_its_weights_its_seed_and_that_it_takes_the_best(tmp_path):
    file = tmp_path / "w.safetensors"
    atomic_write(file, safetensors(weights_for(Neural(world_of()))))
    loaded = load_policy(parse_policy(f"class=neural,data={file},kw.deterministic=True"), world_of())
    drawn = load_policy(parse_policy("class=neural,kw.seed=5,kw.deterministic=True"), world_of())
    assert actions(drawn) == actions(Neural(world_of(), seed=5, deterministic=True))
    assert actions(loaded) != actions(drawn)


def test_weights_of_other_shapes_are_refused_by_name(tmp_path):
    policy = Neural(world_of())
    weights = weights_for(policy) | {"head.bias": np.zeros(9, np.float32), "spare": np.zeros(1, np.float32)}
    del weights["gru.bias_ih"]
    atomic_write(tmp_path / "w.safetensors", safetensors(weights))
    with pytest.raises(UsageError, match=r"gru.bias_ih missing.*head.bias \(9,\), not \(3,\).*spare"):
        policy.load(str(tmp_path / "w.safetensors"))


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    policy = Neural(world_of())
    weights = weights_for(policy) | {"head.bias": np.full(3, np.nan, np.float32)}
    atomic_write(tmp_path / "w.safetensors", safetensors(weights))
    with pytest.raises(UsageError, match=r"finite, got others in head.bias"):
        policy.load(str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_weights_of_another_type_are_refused(tmp_path, dtype):
    policy = Neural(world_of())
    atomic_write(tmp_path / "w.safetensors", safetensors(weights_for(policy) | {"head.bias": np.zeros(3, dtype)}))
    with pytest.raises(UsageError, match=r"must be of F32, got others in head.bias of .*; convert them"):
        policy.load(str(tmp_path / "w.safetensors"))
