"""Scripts in CleanRL's shape run with one line changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import stretto.interop.cleanrl as gym
from stretto.envs.infos import info_of
from stretto.envs.vector import VectorEnv
from tests.backends import every_backend

SCRIPT = Path(__file__).with_name("ppo_in_one_file.py")


def make():
    return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))


@every_backend
def test_steps_are_those_of_gymnasium_and_last_infos_are_by_environment(options):
    ours = gym.vector.SyncVectorEnv([make] * 3, **options)
    plain = gymnasium.vector.SyncVectorEnv([make] * 3, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    try:
        assert isinstance(ours.unwrapped, VectorEnv)
        assert np.array_equal(ours.reset(seed=3)[0], plain.reset(seed=3)[0])
        ended = 0
        for t in range(60):
            actions = np.array([t % 2, 1, 0])
            *found, infos = ours.step(actions)
            *expected, batched = plain.step(actions)
            assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
            assert ("final_info" in infos) == ("final_info" in batched)
            for i, info in enumerate(infos.get("final_info", ())):
                if not batched["_final_info"][i]:
                    assert info is None
                    assert infos["final_observation"][i] is None
                    continue
                ended += 1
                last = info_of(batched["final_info"], i)
                assert (info["episode"]["r"], info["episode"]["l"]) == (last["episode"]["r"], last["episode"]["l"])
                assert np.array_equal(infos["final_observation"][i], batched["final_obs"][i])
        assert ended > 3
    finally:
        ours.close()
        plain.close()


def test_all_other_names_are_those_of_gymnasium():
    assert gym.make is gymnasium.make
    assert gym.wrappers.ClipAction is gymnasium.wrappers.ClipAction
    assert gym.vector.VectorEnv is gymnasium.vector.VectorEnv
    assert gym.vector.AsyncVectorEnv is gym.vector.SyncVectorEnv
    with pytest.raises(AttributeError, match="no_such"):
        _ = gym.no_such


def test_a_script_in_its_shape_runs_and_prints_the_returns_of_its_episodes():
    pytest.importorskip("torch", reason="torch is not installed")
    ran = subprocess.run([sys.executable, SCRIPT, "CartPole-v1"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    *episodes, loss = ran.stdout.splitlines()
    assert len(episodes) > 5
    for line in episodes:
        told, added = (float(part.partition("=")[2]) for part in line.split())
        assert told == added
    assert np.isfinite(float(loss.partition("=")[2]))
