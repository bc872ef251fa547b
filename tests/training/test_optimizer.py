"""Adam for a block: each agent moves as torch's own optimizer would move it, and whoever does not learn stays."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stretto.policies.networks.parameters import Parameters  # noqa: E402
from stretto.training.optimizer import Adam  # noqa: E402

AGENTS, MOST = 3, 0.5


def parameters_of(agents: range) -> Parameters:
    found = Parameters(len(agents), 2, {"weight": (8, 8), "bias": (1, 8)})
    found.flat.copy_(torch.from_numpy(numbers(0)[agents.start : agents.stop]))
    return found


def numbers(seed: int) -> np.ndarray:
    size = Parameters(1, 2, {"weight": (8, 8), "bias": (1, 8)}).flat.shape[1]
    return np.random.default_rng(seed).standard_normal((AGENTS, size)).astype(np.float32)


def test_agents_move_as_they_do_with_the_optimizer_of_torch() -> None:
    parameters, rates = parameters_of(range(AGENTS)), [1e-2, 1e-3, 1e-2]
    ours = Adam(parameters, epsilon=1e-5, most_gradient=MOST)
    theirs = [torch.nn.Parameter(one.clone()) for one in parameters.flat]
    optimizers = [torch.optim.Adam([one], rate, eps=1e-5) for one, rate in zip(theirs, rates, strict=True)]
    for update in range(5):
        gradient = torch.from_numpy(numbers(update + 1)) * torch.tensor([1.0, 1e-3, 1.0])[:, None]
        parameters.gradient.copy_(gradient)
        ours.step(rates, ours.norms().numpy(), np.ones(AGENTS, np.bool_))
        for one, mine, optimizer in zip(theirs, gradient, optimizers, strict=True):
            one.grad = mine.clone()
            torch.nn.utils.clip_grad_norm_([one], MOST)
            optimizer.step()
    torch.testing.assert_close(parameters.flat, torch.stack([one.detach() for one in theirs]))
    assert ours.steps.tolist() == [5, 5, 5]


def test_who_does_not_learn_stays_and_the_others_move_as_they_do_alone() -> None:
    whole, alone = parameters_of(range(AGENTS)), parameters_of(range(1, 2))
    ours, single = Adam(whole, most_gradient=MOST), Adam(alone, most_gradient=MOST)
    before = whole.flat.clone()
    for update in range(3):
        whole.gradient.copy_(torch.from_numpy(numbers(update + 1)))
        whole.gradient[2] = torch.nan  # nobody looks at it, and it must not stay
        alone.gradient.copy_(torch.from_numpy(numbers(update + 1))[1:2])
        ours.step([1e-2] * AGENTS, ours.norms().numpy(), np.array([False, True, False]))
        single.step([1e-2], single.norms().numpy(), np.ones(1, np.bool_))
    assert torch.equal(whole.flat[[0, 2]], before[[0, 2]])
    assert torch.equal(whole.flat[1:2], alone.flat)
    assert ours.steps.tolist() == [0, 3, 0]
