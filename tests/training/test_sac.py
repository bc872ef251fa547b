"""SAC: targets, likelihoods and temperatures that are right, and agents that learn as if each were alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.budget import NativeThreads
from stretto.errors import InvalidSpace, UsageError
from stretto.seeding import SeedTree
from stretto.seeding.choices import Choices
from stretto.storage import Piece
from stretto.storage.of_layout import buffer_of
from tests.training.fixed_experience import block_of, learn, piece_of

torch = pytest.importorskip("torch")
ParallelEnv: Any = pytest.importorskip("pettingzoo").ParallelEnv

from stretto.policies.networks import layers  # noqa: E402
from stretto.policies.networks.check import stacks_exactly  # noqa: E402
from stretto.policies.networks.soft_actors import SoftNetworkSettings, SoftPolicy  # noqa: E402
from stretto.policies.networks.squashed import Squashed  # noqa: E402
from stretto.training.learners.base import LearnerBlock  # noqa: E402
from stretto.training.learners.sac import Sac, soft_targets, temperature_gradient  # noqa: E402
from stretto.training.learners.sac_settings import SacSettings  # noqa: E402
from stretto.training.schedules import Schedule  # noqa: E402

SMALL = SoftNetworkSettings((32, 32))
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shared layers, fixed temperature": {
        "network": replace(SMALL, shared_layers=1),
        "tune_temperature": False,
        "most_gradient": 0.5,
    },
    "gru": {"network": replace(SMALL, memory="gru", memory_width=16)},
    "lstm": {"network": replace(SMALL, memory="lstm", memory_width=16, shared_layers=1)},
}
SEEN, DONE = spaces.Box(-1, 1, (5,), np.float32), spaces.Box(-2.0, 1.0, (3,), np.float32)


def small(**given: Any) -> SacSettings:
    shared: dict[str, Any] = {"network": SMALL, "chunk": 4, "burn_in": 2, "learning_starts": 20, "buffer": 2_000}
    return SacSettings(rows=24, updates=3, batch=32, **(shared | given))


# ---- numbers that are known ----


def test_what_is_drawn_is_squashed_into_the_bounds_and_its_likelihood_is_corrected_for_that() -> None:
    head = Squashed(DONE)
    stream = np.random.default_rng(0)
    outputs = torch.from_numpy(stream.normal(0, 0.7, (2, 6, head.width)).astype(np.float32))
    noise = torch.from_numpy(stream.standard_normal((2, 6, 3), np.float32))
    drawn = head.draw(outputs, noise)
    normal = torch.distributions.Normal(outputs[..., :3].double(), outputs[..., 8:11].double().exp())
    before = outputs[..., :3] + outputs[..., 8:11].exp() * noise
    corrected = (normal.log_prob(before.double()) - torch.log(1 - torch.tanh(before.double()) ** 2)).sum(-1)
    torch.testing.assert_close(drawn.likelihoods.double(), corrected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(drawn.numbers, torch.tanh(before))
    actions = head.bounded(np.array([[[-1.0, 0.0, 1.0]]]))
    assert actions.tolist() == [[[-2.0, -0.5, 1.0]]]
    assert head.squashed(actions).tolist() == [[[-1.0, 0.0, 1.0]]]


def test_the_likelihood_of_numbers_at_a_bound_is_finite() -> None:
    head = Squashed(DONE)
    outputs = torch.zeros(1, 1, head.width)
    outputs[..., :3] = 30.0
    drawn = head.draw(outputs, torch.zeros(1, 1, 3))
    # log(1 - tanh(30)^2) is 2 log 2 - 60, although tanh(30) is 1 in 32 bits.
    expected = 3 * (-0.5 * math.log(2 * math.pi) - (2 * math.log(2) - 60))
    assert drawn.likelihoods.item() == pytest.approx(expected, rel=1e-6)


def test_the_written_out_gradient_of_what_is_drawn_is_that_of_automatic_differentiation() -> None:
    head = Squashed(DONE)
    stream = np.random.default_rng(1)
    outputs = torch.from_numpy(stream.normal(0, 0.7, (2, 4, head.width)).astype(np.float32))
    outputs[0, 0, 8] = 3.0  # beyond the largest deviation, where nothing changes
    outputs.requires_grad_()
    noise, by_numbers = (torch.from_numpy(stream.standard_normal((2, 4, 3), np.float32)) for _ in range(2))
    by_likelihoods = torch.from_numpy(stream.standard_normal((2, 4), np.float32))
    drawn = head.draw(outputs, noise)
    ((drawn.numbers * by_numbers).sum() + (drawn.likelihoods * by_likelihoods).sum()).backward()
    with torch.no_grad():
        found = head.draw(outputs, noise).pull(by_numbers, by_likelihoods)
    torch.testing.assert_close(found, outputs.grad, rtol=1e-4, atol=1e-5)


def test_a_target_is_the_reward_and_what_the_lesser_critic_expects_without_the_cost_of_being_likely() -> None:
    values = torch.tensor([[[5.0, 1.0, 7.0], [3.0, 2.0, 8.0]]])
    found = soft_targets(
        torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[0.5, 0.5, 0.0]]), values, torch.tensor([[-1.0, 1.0, 9.0]])
    )
    assert found.tolist() == [[1 + 0.5 * (3 + 1), 0.5 * (1 - 1), 2.0]]


def test_entropy_becomes_dearer_where_it_is_missing() -> None:
    logarithm, likelihoods, target = torch.tensor(0.3, requires_grad=True), torch.tensor([1.5, 2.5]), -3.0
    (-(logarithm * (likelihoods + target)).mean()).backward()  # the loss of Haarnoja et al., 2018
    assert temperature_gradient(-likelihoods.mean(), target).item() == pytest.approx(logarithm.grad.item())
    assert temperature_gradient(torch.tensor(-4.0), -3.0) < 0 < temperature_gradient(torch.tensor(-2.0), -3.0)


def learner(settings: SacSettings, agents: Sequence[int] = (0,)) -> Sac:
    return Sac(block_of(agents, SEEN, DONE), settings)


def plain_update(one: Sac, settings: SacSettings, drawn: Any, noises: list[Any]) -> dict[str, Any]:
    """Return the gradients of an update of one agent, differentiated automatically."""
    policy, critics, target = one.policy, one._critics, one._target
    worth = one._temperature.flat[:, :1].exp()
    seen = drawn.seen
    with torch.no_grad():
        then = policy.head.draw(policy.network.towers(policy.sees(drawn.follows))[:, 0], noises[0])
        judged = target.towers(target.joined(then.numbers, drawn.follows_target))[..., 0].amin(1)
        aim = drawn.rewards + drawn.discounts * (judged - worth * then.likelihoods)
    values = critics.towers(critics.joined(drawn.actions, seen))[..., 0]
    loss = (0.5 * (values - aim[:, None]) ** 2 * drawn.weights[:, None]).sum()
    weights = list(critics.parameters.weights.values())
    found = {"critics": torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)}
    seen = seen.detach()
    ours = policy.head.draw(policy.network.towers(policy.sees(seen))[:, 0], noises[1])
    judged = critics.towers(critics.joined(ours.numbers, seen))[..., 0].amin(1)
    loss = ((worth * ours.likelihoods - judged) * drawn.weights).sum()
    weights = list(policy.network.parameters.weights.values())
    return found | {"actor": torch.autograd.grad(loss, weights, allow_unused=True)}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_gradients_of_critics_and_actor_are_those_of_automatic_differentiation(
    variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(**variant)
    one = learner(settings)
    learn(one, [piece_of(one, 0, 0, settings.rows)])
    buffer = buffer_of(one.layout)
    buffer.extend(piece_of(one, 0, 1, settings.rows))
    with buffer.snapshot() as seen:
        drawn = one._experience.draw(seen, one._streams)
    stream = np.random.default_rng(0)
    noises = [torch.from_numpy(stream.standard_normal((1, drawn.rewards.shape[1], 3), np.float32)) for _ in range(2)]
    expected = plain_update(one, settings, drawn, noises)
    given = iter(noises)
    monkeypatch.setattr(one, "_noise", lambda *_: next(given))
    worth = one._temperature.flat[:, :1].exp()
    one._criticize(drawn, one._streams, worth)
    one._act(drawn, one._streams, worth)
    for name, network in (("critics", one._critics), ("actor", one.policy.network)):
        for mine, wanted in zip(network.parameters.gradients.values(), expected[name], strict=True):
            if wanted is not None:
                torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-5)


# ---- a world of one step, whose best action is known ----


@pytest.mark.parametrize("truncated", [True, False])
def test_a_time_limit_cuts_nothing_off_the_values_and_an_end_does(truncated: bool) -> None:
    # Every decision gives 1 and ends the episode: it is worth 1, or 1 and half of the same again and again.
    space, rows = spaces.Box(0, 1, (1,), np.float32), 64
    block = LearnerBlock(("agent_0",), space, spaces.Box(-1, 1, (1,), np.float32), (SeedTree(3),), 1)
    one = Sac(
        block,
        SacSettings(
            rows,
            120,
            64,
            1_000,
            1,
            Schedule(3e-3),
            0.5,
            0.05,
            temperature=1e-6,
            tune_temperature=False,
            network=SMALL,
        ),
    )
    acted = (np.arange(rows) % 2 == 0)[:, None, None]
    ended, never = acted, np.zeros_like(acted)
    draw = np.random.default_rng(0)
    piece = Piece(
        np.zeros((rows, 1, 1, 1), np.float32),
        draw.uniform(-1, 1, (rows, 1, 1, 1)).astype(np.float32),
        acted,
        acted.astype(np.float32),
        never if truncated else ended,
        ended if truncated else never,
        np.zeros((1, 1, 1), np.float32),
    )
    with buffer_of(one.layout) as buffer, NativeThreads(1).capped():
        for _ in range(4):
            buffer.extend(piece)
            with buffer.snapshot() as seen:
                [figures] = one.learn(seen, 0.5)
    assert figures["value"] == pytest.approx(2.0 if truncated else 1.0, abs=0.1)


class Near(gym.Env):  # type: ignore[type-arg]
    """One number is asked for, from -3 to 1; the reward says how far away what was given is. It may have to be remembered."""

    observation_space = spaces.Box(-3, 1, (2,), np.float32)
    action_space = spaces.Box(-3, 1, (1,), np.float32)

    def __init__(self, remembered: bool = False) -> None:
        self._remembered = remembered

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._wanted, self._steps = float(self.np_random.uniform(-3, 1)), 0
        return np.array([self._wanted, 1], np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        reward = -abs(float(action[0]) - self._wanted)
        seen = [0.0 if self._remembered else self._wanted, 0.0]
        return np.array(seen, np.float32), reward, False, self._steps == 4, {}


@pytest.mark.parametrize("memory", [None, "gru"])
def test_agents_learn_to_give_the_number_that_is_asked_for(memory: Any) -> None:
    network = {"widths": [32, 32], "memory": memory, "memory_width": 32}
    sac = {
        "rows": 15,
        "updates": 30,
        "batch": 128,
        "chunk": 8,
        "buffer": 10_000,
        "learning_starts": 200,
        "learning_rate": 3e-3,
        "discount": 0.5,
        "target_average": 0.02,
        "network": network,
    }
    config = {"sac": sac, "num_envs": 8, "evaluation": {"every": 10**9, "episodes": 20}}
    report = stretto.train(partial(Near, memory is not None), "sac", steps=4_000, config=config, seed=1)
    # Whoever gives always the same number is 1 away on average, 4 in an episode.
    assert report.evaluations[-1]["return"] > -1.2


# ---- the same weights, however they are computed ----


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_weights_do_not_depend_on_how_many_agents_are_computed_together(variant: dict[str, Any]) -> None:
    settings = small(**variant)

    def weights(agents: Sequence[int]) -> list[Any]:
        one = learner(settings, agents)
        for number in range(3):
            learn(one, [piece_of(one, agent, number, settings.rows) for agent in agents])
        both = one._critics.parameters.flat.numpy(), one.policy.network.parameters.flat.numpy()
        return list(zip(*both, strict=True))

    with NativeThreads(1).capped():
        together = weights(range(5))
        first = learner(settings, range(5))._critics.parameters.flat.numpy()[0]
        assert not np.array_equal(together[0][0], first)
        for some in ([0], [3], [1, 2], [4, 0, 3]):
            for agent, mine in zip(some, weights(some), strict=True):
                assert all(map(np.array_equal, mine, together[agent]))


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_check_at_the_start_of_a_run_is_of_critics_too(
    variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(**variant)
    networks = learner(settings, range(3)).policy.networks
    assert [len(one.outputs) for one in networks] == [1, 2]
    assert all(stacks_exactly(one, settings.batch) for one in networks)
    exact = layers._write_products
    monkeypatch.setattr(
        layers, "_write_products", lambda *given: [exact(*given), given[2].mul_(1 + 1e-7 * len(given[0]))]
    )
    assert not any(stacks_exactly(one, settings.batch) for one in networks)


CONFIG: dict[str, Any] = {
    "num_envs": 2,
    "sac": {
        "rows": 16,
        "updates": 2,
        "batch": 32,
        "learning_starts": 40,
        "buffer": 500,
        "chunk": 4,
        "network": {"widths": [32, 32], "memory_width": 16},
    },
    "checkpoint": {"every": 100},
}


def trained(steps: int, loop: str, memory: str | None, **given: Any) -> dict[str, str]:
    network = {**CONFIG["sac"]["network"], "memory": memory}
    config = {**CONFIG, "sac": {**CONFIG["sac"], "network": network}, "loop": loop}
    report = stretto.train("Pendulum-v1", "sac", steps=steps, seed=3, config=config, **given)
    return {agent: one.weights for agent, one in report.agents.items()}


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.parametrize("loop", ["sync", "pipelined"])
def test_a_run_that_goes_on_from_a_checkpoint_learns_the_same_bits(
    tmp_path: Path, loop: str, memory: str | None
) -> None:
    whole = trained(320, loop, memory)
    trained(160, loop, memory, out=tmp_path / "run")
    assert trained(320, loop, memory, out=tmp_path / "run", resume=True) == whole
    assert trained(320, loop, memory, backend="process", workers=2) == whole


class Three(ParallelEnv):  # type: ignore[misc, type-arg]
    """Three agents are each asked for a number of their own."""

    metadata: ClassVar[dict[str, Any]] = {"name": "three"}
    possible_agents: ClassVar[list[str]] = ["a", "b", "c"]

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Box(-1, 2, (2,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._draw, self._steps, self.agents = np.random.default_rng(seed), 0, list(self.possible_agents)
        return self._asked(), {agent: {} for agent in self.agents}

    def _asked(self) -> dict[str, Any]:
        self._wanted = {agent: self._draw.uniform(-1, 1, 1).astype(np.float32) for agent in self.agents}
        return dict(self._wanted)

    def step(self, actions: Any) -> Any:
        rewards = {agent: -float(abs(actions[agent][0] - self._wanted[agent][0])) for agent in self.agents}
        self._steps += 1
        over, there = self._steps == 10, self.agents
        seen = self._asked()
        self.agents = [] if over else there
        return seen, rewards, dict.fromkeys(there, False), dict.fromkeys(there, over), {agent: {} for agent in there}


@pytest.mark.parametrize("loop", ["sync", "pipelined"])
def test_weights_of_a_run_do_not_depend_on_how_learners_are_computed(loop: str) -> None:
    def weights(**given: Any) -> list[str]:
        report = stretto.train(Three, "sac", steps=400, seed=3, config={**CONFIG, "loop": loop, **given})
        return [one.weights for one in report.agents.values()]

    found = weights()
    assert len(set(found)) == 3
    for given in ({"block": 1}, {"block": 2, "learner_set": "processes"}):
        assert weights(**given) == found


# ---- who learns, and who does not ----


def test_an_agent_does_anything_until_it_learns_and_is_told_in_what_others_act_by() -> None:
    one = learner(small(learning_starts=60), [0, 1])
    choices = Choices(np.arange(2 * 512, dtype=np.uint64).reshape(2, 512), np.zeros((2, 512), np.int64))
    seen = np.zeros((2, 512, 5), np.float32)
    # What the actor would do first is in the middle, and hardly ever near a bound.
    one.policy.network.parameters.flat.zero_()
    one.policy.network.parameters.by_tower("bias 2").detach()[..., 8:] = -3.0
    spread = one.policy.step_block(seen, None, choices).actions.std((1, 2))
    assert np.allclose(spread, 3 / math.sqrt(12), atol=0.05)
    learn(one, [piece_of(one, 0, 0, 24), piece_of(one, 1, 0, 24, acts=False)])
    assert one.policy.begun.tolist() == [True, False]
    other = SoftPolicy.described(one.policy.world, [SeedTree(0)] * 2, json.loads(json.dumps(one.policy.description())))
    other.load_state(one.acting(one.state()))
    for greedy in (False, True):
        one.policy.greedy = other.greedy = greedy
        mine, theirs = (policy.step_block(seen, None, choices).actions for policy in (one.policy, other))
        assert np.array_equal(mine, theirs)
        assert (len(np.unique(mine[1])) == 1) == greedy


def test_a_loss_that_is_not_finite_stops_that_agent_and_no_other() -> None:
    settings = small()
    one, alone = learner(settings, [0, 1]), learner(settings, [0])
    pieces = [piece_of(one, agent, 0, settings.rows) for agent in (0, 1)]
    learn(alone, pieces[:1])
    pieces[1].rewards[...] = np.nan
    before = [array.copy() for array in one.weights()[1]]
    learn(one, pieces)
    [failure] = one.failures
    assert (failure.agent, failure.update, failure.reason) == ("agent_1", 1, "its loss is not finite")
    assert all(map(np.array_equal, one.weights()[0], alone.weights()[0]))
    assert np.array_equal(one.weights()[1][0], before[0])


def test_spaces_without_bounds_and_single_actions_are_refused_with_a_learner_that_takes_them() -> None:
    for space in (spaces.Discrete(3), spaces.Box(-np.inf, 1, (2,), np.float32), spaces.Box(0, 9, (1,), np.int64)):
        with pytest.raises(InvalidSpace, match=r"finite bounds, got .*; use ppo"):
            Sac(block_of([0], SEEN, space), small())


def test_a_memory_needs_rows_for_its_chunks() -> None:
    with pytest.raises(UsageError, match=r"sac with a memory must collect at least burn_in \+ chunk rows, 28"):
        learner(small(**VARIANTS["gru"], chunk=26))
