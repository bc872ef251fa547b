"""Agents that have learned, as ONNX files: another program takes the same actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import stretto

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

from stretto.core import WorldSpec  # noqa: E402
from stretto.policies.networks.network import NetworkSettings  # noqa: E402
from stretto.policies.networks.onnx import export_onnx  # noqa: E402
from stretto.policies.networks.policies import ActorPolicy  # noqa: E402
from stretto.policies.networks.soft_actors import SoftPolicy  # noqa: E402
from stretto.policies.networks.values import ValuePolicy, ValueSettings  # noqa: E402
from stretto.policies.onnx_file import OnnxFile  # noqa: E402
from stretto.seeding import SeedTree  # noqa: E402
from stretto.spaces import row_of  # noqa: E402

AGENTS = "a", "b"
FIVE = spaces.Box(-1, 1, (5,))
PARTS = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (20, 20, 3), np.uint8),
        "which": spaces.Discrete(3, start=1),
        "several": spaces.MultiDiscrete([2, 3]),
        "action_mask": spaces.Box(0, 1, (4,), np.int8),
    }
)


def spec_of(seen: Any, done: Any) -> WorldSpec:
    return WorldSpec(AGENTS, dict.fromkeys(AGENTS, seen), dict.fromkeys(AGENTS, done))


def actor_of(seen: Any, done: Any, **settings: Any) -> ActorPolicy:
    trees = [SeedTree(1).child(agent) for agent in AGENTS]
    policy = ActorPolicy.new(spec_of(seen, done), trees, NetworkSettings((16,), **settings), normalizes=True)
    policy.network.parameters.flat.mul_(3)
    if policy.normalizer is not None:
        policy.normalizer.means[...] = 0.1
        policy.normalizer.load_state(policy.normalizer.state())
    policy.greedy = True
    return policy


def batch_of(space: Any, rows: int) -> Any:
    space.seed(3)
    if isinstance(space, spaces.Dict):
        return {name: batch_of(part, rows) for name, part in space.spaces.items()}
    return np.stack([space.sample() for _ in range(2 * rows)]).reshape(2, rows, *space.shape)


def given_row(seen: Any) -> Any:
    """Return what agent b sees of what both see."""
    return {name: part[1] for name, part in seen.items()} if isinstance(seen, dict) else seen[1]


def soft_of(**given: Any) -> SoftPolicy:
    space = spaces.Box(np.float32([[-2, 0]]), np.float32([[2, 5]]))
    settings = NetworkSettings((16, 8), "relu", memory_width=12, **given)
    policy = SoftPolicy.new(spec_of(FIVE, space), [SeedTree(1).child(agent) for agent in AGENTS], settings)
    policy.greedy = True
    return policy


POLICIES = {
    "numbers": lambda: actor_of(FIVE, spaces.Box(np.float32([-2, 0]), np.float32([2, 5]))),
    "a GRU": lambda: actor_of(FIVE, spaces.MultiDiscrete([3, 2]), memory="gru", memory_width=8),
    "an LSTM": lambda: actor_of(FIVE, spaces.Discrete(4), memory="lstm", memory_width=8),
    "parts": lambda: actor_of(PARTS, spaces.Discrete(4)),
    "balanced parts": lambda: actor_of(PARTS, spaces.Discrete(4), body="mlp", balance_parts=True),
    "a shared layer": lambda: actor_of(FIVE, spaces.Discrete(4), shared_layers=1),
    "squashed numbers": lambda: soft_of(memory=None),
    "squashed numbers, a GRU": lambda: soft_of(memory="gru", shared_layers=1),
    "values": lambda: ValuePolicy.new(
        spec_of(FIVE, spaces.Discrete(4)),
        [SeedTree(1).child(agent) for agent in AGENTS],
        ValueSettings(NetworkSettings((16,), "relu", memory="gru", memory_width=8), dueling=True, quantiles=4),
    ),
}


@pytest.mark.parametrize("kind", POLICIES)
def test_a_file_takes_the_actions_of_the_policy_for_any_number_of_rows(kind: str, tmp_path: Path) -> None:
    policy = POLICIES[kind]()
    export_onnx(policy, "b", tmp_path / "agent.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "agent.onnx")
    initial = policy.initial_state()
    for rows in (1, 7):
        states = None if initial is None else np.broadcast_to(initial, (2, rows, *initial.shape)).copy()
        theirs = None if states is None else states[1]
        ours = OnnxFile(policy.world)  # the file as a policy
        ours.load(str(tmp_path / "agent.onnx"))
        agents = [ours.agent_policy("b") for _ in range(rows)]
        for _ in range(2):
            seen = batch_of(policy.world.observation_spaces["b"], rows)
            answer = policy.step_block(seen, states, None)
            parts = {"observation": seen} if not isinstance(seen, dict) else {f"observation.{k}": seen[k] for k in seen}
            given = {name: part[1] for name, part in parts.items()}
            if theirs is not None:
                given["state"] = theirs
            found = session.run(None, given)
            np.testing.assert_allclose(found[0], answer.actions[1], rtol=1e-5, atol=1e-5)
            each = [row_of(policy.world.observation_spaces["b"], given_row(seen), i) for i in range(rows)]
            np.testing.assert_allclose(ours.step_batch(agents, each), answer.actions[1], rtol=1e-5, atol=1e-5)
            if theirs is not None:
                np.testing.assert_allclose(found[1], answer.states[1], rtol=1e-5, atol=1e-5)
                states, theirs = answer.states, found[1]


def test_a_training_run_exports_its_agents(tmp_path: Path) -> None:
    small = {"ppo": {"rows": 16, "batch": 32, "epochs": 1, "network": {"widths": [8]}}}
    report = stretto.train("CartPole-v1", "ppo", steps=100, num_envs=4, config=small, backend="serial")
    report.export_onnx("agent_0", tmp_path / "agent.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "agent.onnx")
    assert session.run(None, {"observation": np.zeros((3, 4), np.float32)})[0].shape == (3,)
