"""The keys of a YAML file, and what is said about those that are wrong."""

from __future__ import annotations

import pytest

from stretto.errors import UsageError
from stretto.interop.meta_config import MetaConfig, meta_config, read_meta_config
from tests.backends import OPTIONS

WHOLE = """
seed: 1
env:
  env_type: meta
  env_name: pointgoal
  max_rollouts_per_task: 2
  num_train_tasks: 50
  num_eval_tasks: 20
  num_parallel_workers: 3
  env_kwargs: {horizon: 5}
train:
  num_rollouts_per_iter: 12
  num_init_rollouts_pool: 0
  buffer_size: 1e6
policy: {seq_model: gru}
"""


def test_a_file_is_read_and_makes_environments(tmp_path):
    path = tmp_path / "config.yml"
    path.write_text(WHOLE)
    config = read_meta_config(path)
    assert config == MetaConfig(
        "pointgoal", "meta", 2, None, 50, 20, 3, env_kwargs={"horizon": 5}, num_rollouts_per_iter=12
    )
    with config.make_parallel_env(seed=0, **OPTIONS["serial"]) as envs:
        assert len(envs) == 3
        assert envs.get_attr("horizon") == [5, 5, 5]


def test_one_worker_means_no_parallel_environments_and_auto_one_a_core():
    assert meta_config({"env_name": "pointgoal"}).make_parallel_env() is None
    config = meta_config({"env_name": "pointgoal", "num_parallel_workers": "auto"})
    with config.make_parallel_env(**OPTIONS["serial"]) as envs:
        assert len(envs) >= 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            {"num_parallel_workers": 0},
            "num_parallel_workers in it must be a whole number of at least 1, or auto, got 0;",
        ),
        ({"num_parallel_workers": "all"}, "at least 1, or auto, got 'all'; leave it out for 1"),
        ({"max_rollouts_per_task": 2.5}, "max_rollouts_per_task in it must be a whole number of at least 1, got 2.5"),
        ({"max_rollouts_per_task": True}, "must be a whole number of at least 1, got True"),
        ({"env_type": "mta"}, "env_type in it must be one of meta, pomdp, .* got 'mta'; leave it out for 'meta'"),
        (
            {"num_paralel_workers": 4},
            r"no key of env in it is called 'num_paralel_workers' .*, got 4 .* num_parallel_wor",
        ),
        ({"speed": 4}, "no key of env in it is called 'speed' .arguments of a world stand under env_kwargs."),
        ({"env_name": None}, "env_name in it must be the name of a world, got None; write another"),
    ],
)
def test_a_wrong_key_or_value_in_env_is_named_with_its_rule(content, sentence):
    with pytest.raises(UsageError, match=sentence):
        meta_config({"env": {"env_name": "pointgoal", **content}}, "it")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([1], "must be a mapping with the keys env and train, got"),
        ({"env": 3}, "env in it must be a mapping from keys to values, got 3"),
        ({"env": {}}, "must name its world, and has no env_name; add env_name"),
        (
            {"env": {"env_name": "a"}, "train": {"num_rollout_per_iter": 2}},
            "'num_rollout_per_iter', got 2 .* num_rollouts_p",
        ),
        (
            {"env": {"env_name": "a"}, "train": {"num_rollouts_per_iter": 0}},
            "num_rollouts_per_iter in it must be a whole",
        ),
    ],
)
def test_a_wrong_section_is_named(content, sentence):
    with pytest.raises(UsageError, match=sentence):
        meta_config(content, "it")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "broken.yml").write_text("env: [")
    with pytest.raises(UsageError, match=r"must be readable YAML, and .*broken\.yml is not"):
        read_meta_config(tmp_path / "broken.yml")
    with pytest.raises(UsageError, match="No such file"):
        read_meta_config(tmp_path / "missing.yml")
