"""Networks in blocks: an agent's numbers are the same to the bit, whoever else is in its block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch")

from stretto.budget import NativeThreads  # noqa: E402
from stretto.policies.networks import layers  # noqa: E402
from stretto.policies.networks.check import stacks_exactly  # noqa: E402
from stretto.policies.networks.inputs import Inputs  # noqa: E402
from stretto.policies.networks.network import Network, NetworkSettings  # noqa: E402
from stretto.policies.networks.normalizer import Normalizer  # noqa: E402
from stretto.seeding import SeedTree  # noqa: E402

FIVE = spaces.Box(-1, 1, (5,))
MANY = spaces.Box(-1, 1, (854,))
PICTURE = spaces.Box(0, 255, (20, 20, 3), np.uint8)
BOTH = spaces.Dict({"picture": PICTURE, "numbers": FIVE})
AGENTS = 8


@pytest.fixture(autouse=True)
def one_native_thread() -> Any:
    with NativeThreads(1).capped():
        yield


def network_of(agents: range, space: Any, outputs: tuple[int, ...], settings: NetworkSettings) -> Network:
    trees = [SeedTree(3).child(agent) for agent in agents]
    return Network(trees, space, outputs, settings, (0.5, 1.0))


def observations(space: Any, *axes: int) -> Any:
    """Return a batch with leading axes."""
    space.seed(1)
    if isinstance(space, spaces.Dict):
        return {name: observations(part, *axes) for name, part in space.spaces.items()}
    return np.stack([space.sample() for _ in range(int(np.prod(axes)))]).reshape(*axes, *space.shape)


def outputs_and_gradient(network: Network, rows: Any, states: Any, resets: Any, acted: Any) -> tuple[Any, Any]:
    going = network.go_through(network.recall(rows, states, resets, acted)[0])
    going.back(2 * going.outputs)
    return going.outputs, network.parameters.gradient


SHAPES = [
    *((FIVE, widths, head, None, batch) for widths in ((64, 64), (20,), ()) for head in (1, 6) for batch in (32, 64)),
    (FIVE, (64, 64), 2, None, 256),
    *((MANY, (64, 64), 6, None, batch) for batch in (16, 64, 256)),
    *((FIVE, (64,), 3, memory, batch) for memory in ("gru", "lstm") for batch in (1, 4, 16)),
    (PICTURE, (64,), 3, None, 32),
    (BOTH, (64,), 3, "gru", 4),
]


@pytest.mark.parametrize(("space", "widths", "head", "memory", "batch"), SHAPES)
def test_outputs_and_gradients_of_a_block_are_those_of_its_agents_alone(space, widths, head, memory, batch) -> None:
    settings = NetworkSettings(widths, memory=memory, memory_width=40)
    whole = network_of(range(AGENTS), space, (head, 1), settings)
    time = 1 if memory is None else 8
    rows = whole.inputs.rows(observations(space, AGENTS, time, batch))
    draw = np.random.default_rng(0)
    states = torch.from_numpy(draw.standard_normal((AGENTS, batch, whole.state_width)).astype(np.float32))
    resets, acted = (torch.from_numpy(draw.random((AGENTS, time, batch)) < share) for share in (0.1, 0.8))
    outputs, gradient = outputs_and_gradient(whole, rows, states, resets, acted)
    for first, size in ((0, 3), (5, 3), (2, 1), (7, 1)):
        some = slice(first, first + size)
        part = network_of(range(first, first + size), space, (head, 1), settings)
        assert torch.equal(part.parameters.flat, whole.parameters.flat[some])
        mine = outputs_and_gradient(part, rows[some], states[some], resets[some], acted[some])
        assert torch.equal(mine[0], outputs[some])
        assert torch.equal(mine[1], gradient[some])


@pytest.mark.parametrize(
    ("space", "memory"), [(FIVE, None), (MANY, None), (FIVE, "lstm"), (BOTH, None)], ids=["few", "many", "lstm", "both"]
)
def test_the_way_back_gives_the_gradient_of_automatic_differentiation(space: Any, memory: Any) -> None:
    network = network_of(range(2), space, (3, 1), NetworkSettings((64,), memory=memory, memory_width=16))
    rows = network.inputs.rows(observations(space, 2, 2, 32))
    resets, states = torch.zeros(2, 2, 32, dtype=torch.bool), torch.zeros(2, 32, network.state_width)
    outputs, _ = network.unroll(rows, states, resets)
    network.parameters.differentiate([outputs], [2 * outputs.detach()])
    wanted = network.parameters.gradient.clone()
    network.parameters.gradient.zero_()
    found, gradient = outputs_and_gradient(network, rows, states, resets, None)
    torch.testing.assert_close(found, outputs.detach().flatten(2, 3))
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("here", [True, False], ids=["numpy", "torch"])
def test_products_are_those_of_plain_layers(here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_is_here", lambda rows: here)
    network = network_of(range(2), MANY, (3, 1), NetworkSettings((64,)))
    rows = network.inputs.rows(observations(MANY, 2, 64))
    weights = {name: network.parameters.by_tower(name) for name in ("weight 0", "bias 0", "weight 1", "bias 1")}
    hidden = torch.tanh(rows[:, None] @ weights["weight 0"] + weights["bias 0"])
    wanted = hidden @ weights["weight 1"] + weights["bias 1"]
    going = network.go_through(rows)
    torch.testing.assert_close(going.outputs, wanted.detach())
    going.back(2 * going.outputs)
    gradients = torch.autograd.grad((wanted * wanted).sum(), list(weights.values()))
    for name, gradient in zip(weights, gradients, strict=True):
        torch.testing.assert_close(network.parameters.by_tower(name, network.parameters.gradients), gradient)


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.parametrize(("widths", "shared"), [((64, 64), 1), ((40, 24), 2), ((64,), 3)])
def test_a_block_with_shared_layers_computes_what_its_agents_compute_alone(widths, shared, memory) -> None:
    settings = NetworkSettings(widths, shared_layers=shared, memory=memory, memory_width=40)
    assert stacks_exactly(network_of(range(AGENTS), FIVE, (3, 1), settings), 64)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("shared", [1, 2])
def test_towers_with_shared_layers_are_heads_on_one_network(shared, activation) -> None:
    settings = NetworkSettings((16, 24), shared_layers=shared, activation=activation)
    network = network_of(range(1), FIVE, (3, 1), settings)
    named = network.parameters.weights
    rows = network.inputs.rows(observations(FIVE, 1, 32))
    outputs = network(rows)
    network.parameters.differentiate([outputs], [2 * outputs.detach()])
    mine = {
        name: gradient[0].clone() for name, gradient in network.parameters.named(network.parameters.gradient).items()
    }
    function = torch.tanh if activation == "tanh" else torch.relu
    hidden, towers = rows[0], []
    for layer in range(shared):
        hidden = function(hidden @ named[f"shared weight {layer}"][0] + named[f"shared bias {layer}"][0])
    for tower in range(2):
        seen = hidden
        for layer in range(3 - shared):
            seen = seen @ named[f"weight {layer}"][0, tower] + named[f"bias {layer}"][0, tower]
            seen = function(seen) if layer < 2 - shared else seen
        towers.append(seen)
    torch.testing.assert_close(outputs[0], torch.stack(towers))
    loss = (torch.stack(towers) ** 2).sum()
    theirs = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    for name, gradient in zip(named, theirs, strict=True):
        if gradient is not None:
            torch.testing.assert_close(mine[name], gradient[0])


SEVERAL = spaces.Dict({"many": spaces.Box(-1, 1, (8, 8)), "one": spaces.Discrete(3), "few": spaces.Box(-1, 1, (4,))})


def test_balanced_parts_weigh_the_same_whatever_their_size() -> None:
    plain, balanced = Inputs(SEVERAL), Inputs(SEVERAL, balanced=True)
    seen = observations(SEVERAL, 2, 5)
    weights = np.zeros(plain.width)
    begin = 0
    for leaf in plain.leaves:
        size = {"many": 64, "one": 3, "few": 4}[leaf.path[0]]
        weights[begin : begin + size] = np.sqrt(64 / size)
        begin += size
    torch.testing.assert_close(balanced.rows(seen), plain.rows(seen) * torch.from_numpy(weights.astype(np.float32)))
    assert Inputs(FIVE, balanced=True).weights is None


def test_normalizing_keeps_the_weights_of_balanced_parts() -> None:
    inputs = Inputs(SEVERAL, balanced=True)
    weights = inputs.weights
    assert weights is not None
    draw = np.random.default_rng(0)
    rows = torch.from_numpy(draw.normal(3.0, 7.0, (1, 4096, inputs.width)).astype(np.float32))
    normalizer = Normalizer(1, inputs.width, weights)
    normalizer.update(rows, np.ones((1, 4096), np.bool_))
    found = normalizer(rows)
    np.testing.assert_allclose(found[0].numpy().std(0), weights, rtol=0.02)
    extreme = normalizer(torch.full((1, 1, inputs.width), 1e6))
    np.testing.assert_allclose(extreme[0, 0].numpy(), 10 * weights, rtol=1e-6)
    torch.testing.assert_close(normalizer.part(slice(0, 1))(rows), found)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_cells_compute_what_those_of_torch_compute(memory) -> None:
    network = network_of(range(1), FIVE, (2, 1), NetworkSettings(memory=memory, memory_width=32))
    cell = network.memory
    assert cell is not None
    theirs = (torch.nn.GRUCell if memory == "gru" else torch.nn.LSTMCell)(8, 32)
    order = [0, 1, 2] if memory == "gru" else [0, 1, 3, 2]  # theirs has the gate `new` before the last one
    with torch.no_grad():
        for name, mine in (("ih", "memory inputs"), ("hh", "memory outputs")):
            gates = (
                network.parameters.weights[mine][0]
                .normal_(generator=torch.Generator().manual_seed(1))
                .chunk(3 if memory == "gru" else 4, 1)
            )
            getattr(theirs, f"weight_{name}").copy_(torch.cat([gates[k] for k in order], 1).T)
        for name, mine in (("ih", "memory input bias"), ("hh", "memory output bias")):
            gates = network.parameters.weights[mine][0, 0].chunk(3 if memory == "gru" else 4)
            getattr(theirs, f"bias_{name}").copy_(torch.cat([gates[k] for k in order]))
        rows = network.inputs.rows(observations(FIVE, 1, 6, 4))
        outputs, states = [], torch.zeros(1, 4, network.state_width)
        for time in range(6):
            seen, states = network.see(rows[:, time], states)
            outputs.append(seen)
        hidden = None
        for time in range(6):
            hidden = theirs(rows[0, time], hidden)
            shown = hidden if memory == "gru" else hidden[0]
            torch.testing.assert_close(outputs[time][0], shown)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_unrolling_is_stepping_with_empty_states_after_ends_and_none_kept_where_nobody_acted(memory) -> None:
    network = network_of(range(2), FIVE, (2, 1), NetworkSettings(memory=memory, memory_width=32))
    rows = network.inputs.rows(observations(FIVE, 2, 5, 4))
    resets, acted = torch.zeros(2, 5, 4, dtype=torch.bool), torch.ones(2, 5, 4, dtype=torch.bool)
    acted[0, 2, 1] = False  # the last observation of an episode ...
    resets[0, 3, 1] = True  # ... before another one
    with torch.no_grad():
        outputs, last = network.unroll(rows, torch.zeros(2, 4, network.state_width), resets, acted)
        states = torch.zeros(2, 4, network.state_width)
        for time in range(5):
            before = torch.where(resets[:, time, :, None], 0.0, states)
            seen, after = network.see(rows[:, time], before)
            assert after is not None
            states = torch.where(acted[:, time, :, None], after, before)
            torch.testing.assert_close(network.towers(seen), outputs[:, :, time])
        torch.testing.assert_close(states, last)


def test_images_of_any_kind_become_features_beside_the_numbers() -> None:
    first = spaces.Box(0, 1, (3, 20, 20), np.float32)
    seen = observations(PICTURE, 1, 4)
    settings = NetworkSettings()
    network = network_of(range(1), PICTURE, (2, 1), settings)
    assert network.inputs.rows(seen).dtype == torch.uint8
    moved = np.moveaxis(seen, -1, 2).astype(np.float32) / np.float32(255)
    other = network_of(range(1), first, (2, 1), settings)
    with torch.no_grad():
        mine, theirs = network(network.inputs.rows(seen)), other(other.inputs.rows(moved))
        torch.testing.assert_close(mine, theirs)
        both = network_of(range(1), BOTH, (2, 1), settings)
        changed = {"picture": seen, "numbers": np.ones((1, 4, 5), np.float32)}
        still = {"picture": seen, "numbers": np.zeros((1, 4, 5), np.float32)}
        assert not torch.equal(both(both.inputs.rows(changed)), both(both.inputs.rows(still)))


def test_small_images_are_plain_numbers_unless_convolutions_are_asked_for() -> None:
    small = spaces.Box(0, 255, (7, 7, 3), np.uint8)
    assert not network_of(range(1), small, (2, 1), NetworkSettings()).inputs.images
    assert not network_of(range(1), PICTURE, (2, 1), NetworkSettings(body="mlp")).inputs.images
    network = network_of(range(1), small, (2, 1), NetworkSettings(body="cnn"))
    assert network(network.inputs.rows(observations(small, 1, 4))).shape == (1, 2, 4, 8)


@pytest.mark.parametrize("memory", [None, "lstm"])
@pytest.mark.parametrize("space", [FIVE, PICTURE, BOTH], ids=["numbers", "picture", "both"])
def test_the_check_at_the_start_of_a_run_holds_here_and_changes_nothing(space: Any, memory: Any) -> None:
    network = network_of(range(3), space, (2, 1), NetworkSettings(memory=memory, memory_width=16))
    before = network.parameters.flat.clone(), network.parameters.gradient.clone()
    assert stacks_exactly(network, 32)
    assert torch.equal(network.parameters.flat, before[0])
    assert torch.equal(network.parameters.gradient, before[1])


def test_the_check_finds_a_kernel_whose_last_bits_depend_on_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = layers._product
    monkeypatch.setattr(layers, "_product", lambda *given: exact(*given) * (1 + 1e-7 * len(given[0])))
    assert not stacks_exactly(network_of(range(3), FIVE, (2, 1), NetworkSettings()), 32)
