"""CAGE challenge 2: by its short names, the same to the bit as the challenge's own wrapper, wherever it runs."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto.errors import UsageError
from stretto.identity.source import find_module
from stretto.testing import check_env
from tests.backends import every_backend
from tests.docs.pages import ROOT
from tests.docs.test_code import test_the_python_of_a_page_runs_from_top_to_bottom as run_page

needs_cyborg = pytest.mark.skipif(
    find_module("CybORG") is None or find_module("gym") is None,
    reason="CybORG, or gym, which it needs, is not installed",
)
TABLE_ACCESS = {"None": 0, "User": 1, "Privileged": 2}


@pytest.fixture(name="challenge")
def challenges():
    """Return what makes the challenge as CybORG's own evaluation does: its object, and its wrapper around that."""
    from CybORG import Agents, CybORG
    from CybORG.Agents.SimpleAgents.Meander import RedMeanderAgent
    from CybORG.Agents.Wrappers import ChallengeWrapper

    scenario = Path(inspect.getfile(CybORG)).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
    red = {"b_line": Agents.B_lineAgent, "meander": RedMeanderAgent, "sleep": Agents.SleepAgent}

    def challenge(name):
        cyborg = CybORG(str(scenario), "sim", agents={"Red": red[name]})
        return cyborg, ChallengeWrapper(env=cyborg, agent_name="Blue")

    return challenge


def alone(challenge, seed, actions, steps_an_episode):
    """Play the challenge by itself: what is seen before each action, and what each earns."""
    cyborg, env = challenge
    cyborg.set_seed(seed)
    seen, rewards = [env.reset()], []
    for number, action in enumerate(actions, 1):
        observation, reward, _, _ = env.step(int(action))
        rewards.append(reward)
        seen.append(env.reset() if number % steps_an_episode == 0 else observation)
    return np.array(seen), np.array(rewards)


@needs_cyborg
@every_backend
@pytest.mark.parametrize("name", ["b_line", "meander", "sleep"])
def test_trajectories_are_exactly_those_of_each_environment_alone(name, options, challenge):
    actions = np.random.default_rng(0).integers(145, size=(24, 3))
    with stretto.make_vec(
        f"cage2_{name}", 3, env_kwargs={"max_steps": 10}, autoreset_mode="same_step", **options
    ) as envs:
        seen, rewards = [envs.reset(seed=5)[0]], []
        for row in actions:
            observations, reward, terminated, _, _ = envs.step(row)
            seen.append(observations)
            rewards.append(reward)
            assert not terminated.any()
        assert envs.single_observation_space.shape == (52,)
        states = np.stack(envs.map(lambda env: env.unwrapped.true_state()))
    assert states.shape == (3, 13, 3)
    one = challenge(name)
    for slot in range(3):
        expected, earned = alone(one, 5 + slot, actions[:, slot], 10)
        assert np.array_equal(np.stack(seen)[:, slot], expected)
        assert np.array_equal(np.stack(rewards)[:, slot], earned)


@needs_cyborg
@pytest.mark.parametrize("name", ["b_line", "meander"])
def test_the_true_state_is_that_of_the_challenges_own_table(name):
    from stretto.adapters.cyborg import Cage2

    env = Cage2(name)
    env.reset(seed=1)
    reached = set()
    for action in np.random.default_rng(1).integers(145, size=40):
        env.step(action)
        table = {
            row[2]: [int(row[3]), int(row[4]), TABLE_ACCESS[row[5]]] for row in env._table.get_table("true_table")._rows
        }
        state = dict(zip(env.hosts, env.true_state().tolist(), strict=True))
        assert state == table
        reached |= set(map(tuple, table.values()))
    assert len(reached) > 2


@needs_cyborg
def test_without_decoys_there_are_41_actions():
    with stretto.make_vec("cage2_b_line", 1, variants=["no_decoys"], backend="serial") as envs:
        assert envs.single_action_space.n == 41
        (names,) = envs.get_attr("action_names")
    assert names[:3] == ("Sleep", "Monitor", "Analyse Defender")
    assert names[-1] == "Restore User4"
    assert not any("Decoy" in name for name in names)
    with pytest.raises(UsageError, match="actions must be 145, or 41 without decoys, got 54"):
        stretto.make_vec("cage2_b_line", 1, env_kwargs={"actions": 54}, backend="serial")


@needs_cyborg
def test_it_is_reproducible_and_policies_are_evaluated_on_it_with_one_result():
    check_env("cage2_b_line")
    runs = [stretto.evaluate("cage2_meander", ["random", "noop"], episodes=3, steps=15, jobs=jobs) for jobs in (0, 2)]
    assert [r.rewards for r in runs[0].records] == [r.rewards for r in runs[1].records]
    assert not any(record.failure for record in runs[0].records)


@needs_cyborg
def test_names_that_its_users_know_give_the_same_trajectories_and_true_states():
    from CybORG.Agents import B_lineAgent

    from stretto.interop.cyborg import ParallelEnv, ParallelEnvSharedMemory, VectorizedCAGE2Envs

    actions = np.random.default_rng(3).integers(145, size=(9, 4))
    runs = []
    for kind in (ParallelEnv, ParallelEnvSharedMemory, VectorizedCAGE2Envs):
        envs = kind(n_envs=4, red_agent_type=B_lineAgent, max_steps=4, seed=2)
        run = [envs.reset()]
        for row in actions:
            observations, rewards, dones, infos = envs.step(row)
            run += [observations, rewards, dones]
            assert [("terminal_observation" in info) for info in infos] == dones.tolist()
        run.append(envs.get_true_states())
        envs.close()
        envs.close()
        runs.append(run)
    for run in runs[1:]:
        assert all(np.array_equal(one, other) for one, other in zip(run, runs[0], strict=True))
    assert runs[0][-1].shape == (4, 13, 3)


@needs_cyborg
def test_the_recipe_runs(tmp_path, monkeypatch):
    from CybORG import CybORG

    monkeypatch.setenv("PYTHONPATH", str(Path(inspect.getfile(CybORG)).parents[1]))
    run_page(ROOT / "docs" / "guide" / "recipes" / "cyborg.md", tmp_path)
