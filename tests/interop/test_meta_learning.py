"""A learner as pomdp-baselines has it collects into its buffer: the same, however many environments there are."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from stretto.interop.meta import make_parallel_env
from stretto.interop.meta_learning import AGENT_ARCHS, ParallelCollection
from tests.backends import OPTIONS
from tests.interop.trials import Sums, SumsInADict, like_varibad, wide_actions


class MarkovAgent:
    """Acts by what it sees and by numpy's global generator, and says which choice it is by a one among zeros."""

    def act(self, obs, deterministic=False):
        assert obs.shape[0] == 1
        assert not deterministic
        choice = (int(abs(obs).sum()) + np.random.randint(2)) % 3
        return np.eye(3)[[choice]], None, None, None


class MemoryAgent:
    """Acts by the sum of all rewards of its trial, which is its state, and by its last action."""

    seen: ClassVar[list] = []

    def get_initial_info(self):
        return np.zeros((1, 3)), np.zeros((1, 1)), {"sum": np.zeros((1, 1))}

    def act(self, prev_internal_state, prev_action, reward, obs, deterministic=False):
        state = {"sum": prev_internal_state["sum"] + reward}
        self.seen.append(float(reward[0, 0]))
        choice = (int(abs(state["sum"][0, 0])) + int(prev_action.argmax()) + np.random.randint(2)) % 3
        return (np.eye(3)[[choice]], None, None, None), state


class Storage:
    def __init__(self):
        self.samples, self.episodes = [], []

    def add_sample(self, **sample):
        self.samples.append(sample)

    def add_episode(self, **episode):
        self.episodes.append(episode)

    def __repr__(self):
        return repr((self.samples, self.episodes))


class Learner(ParallelCollection):
    def __init__(self, arch, train_env, agent=None):
        self.agent_arch, self.train_env, self.seed = arch, train_env, 3
        self.agent = agent or (MemoryAgent() if arch == "memory" else MarkovAgent())
        self.train_tasks, self.max_rollouts_per_task = [10, 20, 30], 2
        self.policy_storage = Storage()
        self._n_env_steps_total = self._n_rollouts_total = 0


@pytest.mark.parametrize("make", [Sums, like_varibad])
@pytest.mark.parametrize("arch", list(AGENT_ARCHS))
@pytest.mark.parametrize("random_actions", [False, True])
def test_what_is_stored_does_not_depend_on_how_it_is_collected(make, arch, random_actions):
    alone = Learner(arch.value, make())
    steps = [alone.collect_rollouts_parallel(4, random_actions) for _ in range(2)]
    assert sum(steps) == alone._n_env_steps_total
    assert alone._n_rollouts_total == 8
    for width, options in ((3, OPTIONS["serial"]), (5, OPTIONS["process-isolated"])):
        with make_parallel_env(make, 2, width, seed=9, make_options=options) as envs:
            learner = Learner(arch, make())
            assert [learner.collect_rollouts_parallel(4, random_actions, envs) for _ in range(2)] == steps
            assert repr(learner.policy_storage) == repr(alone.policy_storage)


def test_a_markov_agent_stores_steps_and_others_store_trials():
    learner = Learner(AGENT_ARCHS.Memory_Markov, Sums())
    learner.collect_rollouts_parallel(2)
    assert len(learner.policy_storage.episodes) == 2
    assert not learner.policy_storage.samples
    whole = learner.policy_storage.episodes[0]
    assert [whole[name].shape[1] for name in whole] == [3, 1, 1, 1, 3]
    assert np.array_equal(whole["observations"][1:], whole["next_observations"][:-1])
    assert whole["observations"][:, 2].sum() == 1  # the boundary
    assert whole["terminals"].tolist() == [[0.0]] * (len(whole["terminals"]) - 1) + [[1.0]]
    learner = Learner(AGENT_ARCHS.Markov, Sums())
    count = learner.collect_rollouts_parallel(2)
    assert len(learner.policy_storage.samples) == count
    assert learner.policy_storage.samples[0]["observation"].shape == (3,)
    assert learner.policy_storage.samples[0]["reward"].shape == (1,)


class DictAgent(MarkovAgent):
    """Acts by the parts of what it sees."""

    def act(self, obs, deterministic=False):
        assert obs["observation"]["counts"]["steps"].shape == (1,)
        return super().act(obs["observation"]["sum"] + obs["boundary"])


class DictMemoryAgent(MemoryAgent):
    def act(self, prev_internal_state, prev_action, reward, obs, deterministic=False):
        assert obs["observation"]["sum"].shape == (1, 1)
        return super().act(prev_internal_state, prev_action, reward, obs)


@pytest.mark.parametrize("arch", list(AGENT_ARCHS))
def test_observations_in_dicts_are_given_to_agents_and_stored_as_dicts(arch):
    def learner():
        return Learner(arch, SumsInADict(), DictMemoryAgent() if arch is AGENT_ARCHS.Memory else DictAgent())

    alone = learner()
    steps = alone.collect_rollouts_parallel(4)
    for width, options in ((1, OPTIONS["serial"]), (3, OPTIONS["process-isolated"])):
        with make_parallel_env(SumsInADict, 2, width, seed=9, make_options=options) as envs:
            other = learner()
            assert other.collect_rollouts_parallel(4, parallel_env=envs) == steps
            assert repr(other.policy_storage) == repr(alone.policy_storage)
            first = envs.reset_all([10] * width)
            assert first["observation"]["counts"]["steps"].tolist() == [0] * width
    kept = alone.policy_storage
    if arch is AGENT_ARCHS.Markov:
        samples = kept.samples[:2]
        assert [one["observation"]["observation"]["counts"]["steps"] for one in samples] == [0, 1]
        assert samples[0]["next_observation"]["observation"] == samples[1]["observation"]["observation"]
        return
    whole = kept.episodes[0]
    sums, following = (whole[name]["observation"]["sum"] for name in ("observations", "next_observations"))
    assert sums.shape == (len(whole["rewards"]), 1)
    assert sums[1:].tolist() == following[:-1].tolist()
    assert whole["observations"]["boundary"].sum() == 1


def test_a_memory_lives_through_a_trial_and_is_told_every_reward():
    learner = Learner("memory", Sums())
    MemoryAgent.seen.clear()
    learner.collect_rollouts_parallel(3)
    given = []
    for one in learner.policy_storage.episodes:
        given += [0.0, *one["rewards"][:-1, 0].tolist()]
    assert MemoryAgent.seen == given


def test_agents_of_torch_are_given_tensors_and_their_draws_are_their_own():
    torch = pytest.importorskip("torch")

    class Gaussian(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = torch.nn.Linear(3, 2)

        def act(self, obs, deterministic=False):
            assert obs.dtype == torch.float32
            return self.mean(obs) + torch.randn(1, 2), None, None, None

    agent = Gaussian()
    alone = Learner("markov", wide_actions(), agent)
    state = torch.get_rng_state()
    with make_parallel_env(wide_actions, 2, 3, seed=1, make_options=OPTIONS["serial"]) as envs:
        learner = Learner("markov", None, agent)
        assert learner.collect_rollouts_parallel(4, parallel_env=envs) == alone.collect_rollouts_parallel(4) == 32
    assert torch.equal(state, torch.get_rng_state())
    assert repr(learner.policy_storage) == repr(alone.policy_storage)
    actions = np.stack([sample["action"] for sample in learner.policy_storage.samples])
    assert abs(actions).max() <= 1
