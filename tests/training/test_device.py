"""Learning on a device, as far as that can be seen without one: nothing on it meets anything that is elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.training.fixed_experience import block_of

torch = pytest.importorskip("torch")

from stretto.policies.networks.network import NetworkSettings  # noqa: E402
from stretto.training.learners.ppo import Ppo  # noqa: E402
from stretto.training.learners.ppo_objective import ClippedObjective, Experience, minibatches  # noqa: E402
from stretto.training.learners.ppo_settings import PpoSettings  # noqa: E402
from stretto.training.optimizer import Adam  # noqa: E402
from stretto.training.sequences import Sequences  # noqa: E402

AGENTS, ROWS, LANES = 2, 16, 4
DEVICE = "meta"
"""Torch's device that computes shapes alone: it refuses tensors of other devices, as every device does."""


@pytest.mark.parametrize("done", [spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2,))], ids=["choices", "numbers"])
@pytest.mark.parametrize("memory", [None, "gru", "lstm"])
def test_an_update_stays_on_its_device(done: Any, memory: Any) -> None:
    settings = PpoSettings(
        rows=ROWS, batch=32, sequence=8, network=NetworkSettings((8,), memory=memory, memory_width=8)
    )
    learner = Ppo(block_of(range(AGENTS), spaces.Box(-1, 1, (5,)), done), settings)
    network = learner.policy.network
    acted = np.ones((AGENTS, ROWS, LANES), np.bool_)
    remembered = None if memory is None else np.ones((*acted.shape, network.state_width), np.float32)
    sequences = Sequences(acted, 8 if memory else 1, remembered)
    streams = [np.random.default_rng(0) for _ in range(AGENTS)]
    network.to(DEVICE)
    optimizer = Adam(network.parameters, most_gradient=0.5)
    known = [torch.zeros(AGENTS, ROWS * LANES, device=DEVICE) for _ in range(4)]
    rows = torch.zeros(AGENTS, ROWS * LANES, network.inputs.width, device=DEVICE)
    actions = torch.ones(AGENTS, ROWS * LANES, *done.shape, device=DEVICE)
    experience = Experience(rows, actions, None, *known)
    objective = ClippedObjective(network, learner.policy.head, settings, 0.01)
    for batch, there in minibatches(streams, sequences, experience, settings.batch):
        figures = objective.differentiate(batch, figures=True)
        assert figures is not None
        assert figures.device.type == DEVICE
        assert optimizer.norms().device.type == DEVICE
        optimizer.step([1e-3] * AGENTS, np.ones(AGENTS), there)
