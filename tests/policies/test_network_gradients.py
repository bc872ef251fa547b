"""Gradients that are written out are those of automatic differentiation."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch")

from stretto.policies.networks.heads import head_of  # noqa: E402
from stretto.policies.networks.layers import layered  # noqa: E402

SPACES = [spaces.Discrete(3), spaces.Discrete(2, start=5), spaces.MultiDiscrete([3, 9]), spaces.Box(-2, 2, (3,))]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def plain_scores(space: spaces.Space, outputs: torch.Tensor, scales: torch.Tensor, actions: torch.Tensor) -> tuple:
    """Return likelihoods and entropies as torch's own distributions give them."""
    if isinstance(space, spaces.Box):
        count = space.shape[0]
        drawn = torch.distributions.Normal(outputs[..., :count], scales[:, None, :count].exp())
        return drawn.log_prob(actions).sum(-1), drawn.entropy().sum(-1)
    sizes, starts = np.ravel(getattr(space, "nvec", [getattr(space, "n", 0)])), np.ravel(space.start)
    chosen, begin, likelihoods, entropies = actions.reshape(*outputs.shape[:2], -1), 0, 0, 0
    for k, size in enumerate(sizes.tolist()):
        drawn = torch.distributions.Categorical(logits=outputs[..., begin : begin + size])
        likelihoods, entropies = likelihoods + drawn.log_prob(chosen[..., k] - starts[k]), entropies + drawn.entropy()
        begin += -(-size // 8) * 8
    return likelihoods, entropies


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_head_gives_the_likelihood_and_its_gradient(space: spaces.Space) -> None:
    head = head_of(space)
    space.seed(1)
    actions = torch.from_numpy(np.array([[space.sample() for _ in range(4)] for _ in range(2)]))
    outputs = numbers(2, 4, head.width).requires_grad_()
    scales = numbers(2, head.scales, seed=1).mul_(0.3).requires_grad_()
    by_likelihood, by_entropy = numbers(2, 4, seed=2), numbers(2, 4, seed=3)
    likelihoods, entropies = plain_scores(space, outputs, scales, actions)
    wanted = torch.autograd.grad(
        (likelihoods * by_likelihood + entropies * by_entropy).sum(), [outputs, scales], allow_unused=True
    )
    with torch.no_grad():
        scored = head.score(outputs, scales, actions, None)
        found = scored.pull(by_likelihood, by_entropy)
    assert torch.allclose(scored.likelihoods, likelihoods, atol=1e-5)
    assert torch.allclose(scored.entropies(), entropies, atol=1e-5)
    assert torch.allclose(found[0], wanted[0], atol=1e-5)
    assert found[1] is None if wanted[1] is None else torch.allclose(found[1], wanted[1], atol=1e-4)


def test_actions_that_are_not_allowed_are_never_drawn_and_have_no_gradient() -> None:
    head = head_of(spaces.Discrete(3))
    outputs, allowed = numbers(1, 4, 8), torch.tensor([True, False, True]).expand(1, 4, 3)
    scored = head.score(outputs, torch.zeros(1, 0), torch.zeros(1, 4, dtype=torch.int64), allowed)
    gradient, _ = scored.pull(torch.ones(1, 4), torch.ones(1, 4))
    assert (gradient[..., 1] == 0).all()
    assert torch.allclose(gradient[..., [0, 2]].sum(-1), torch.zeros(1, 4), atol=1e-5)
    assert (head.choose(outputs, torch.zeros(1, 0), None, allowed.numpy()) != 1).all()


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_layers_give_the_gradient_of_plain_ones(activation: str) -> None:
    weights = [numbers(2, 8, 16, seed=1).requires_grad_(), numbers(2, 16, 8, seed=2).requires_grad_()]
    biases = [numbers(2, 1, 16, seed=3).requires_grad_(), numbers(2, 1, 8, seed=4).requires_grad_()]
    rows, weight = numbers(2, 32, 8, seed=5).requires_grad_(), numbers(2, 32, 8, seed=6)
    plain = getattr(torch, activation)(rows @ weights[0] + biases[0]) @ weights[1] + biases[1]
    ours = layered(rows, activation, weights, biases)
    everything = [rows, *weights, *biases]
    assert torch.allclose(ours, plain, atol=1e-5)
    wanted = torch.autograd.grad((plain * weight).sum(), everything)
    found = torch.autograd.grad((ours * weight).sum(), everything)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(found, wanted, strict=True))
