"""The configuration of a run: what it says is checked, and what is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest

import stretto
from stretto.errors import UsageError

pytest.importorskip("torch")

from stretto.training.choices import choices_of
from stretto.training.config import config_of, plain, settings_of
from stretto.training.presets import PRESETS
from stretto.training.schedules import Schedule


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {"ppo": {"learning_rat": 1}},
            r"no setting is called ppo\.learning_rat, got 1 .* did you mean ppo\.learning_rate",
        ),
        ({"learning_rate": 1}, r"no setting is called learning_rate.* did you mean .*ppo\.learning_rate"),
        ({"paralel": {}}, "did you mean parallel"),
        ({"parallel": 3}, "parallel must have keys and values, got 3"),
        ({"steps": 0}, "steps must be greater than or equal to 1, got 0"),
        ({"ppo": {"rows": "many"}}, r"ppo\.rows must be a valid integer.*, got 'many'"),
        ({"ppo": {"discount": 1.5}}, r"ppo\.discount must be less than or equal to 1, got 1\.5"),
        (
            {"ppo": {"network": {"activation": "gelu"}}},
            r"ppo\.network\.activation must be 'tanh' or 'relu', got 'gelu'",
        ),
        ({"ppo": {"learning_rate": {"begin": "x"}}}, r"ppo\.learning_rate\.begin must be a valid number.*, got 'x'"),
        (
            {"ppo": {"learning_rate": -1e-3}},
            r"ppo\.learning_rate\.begin must be greater than or equal to 0, got -0\.001",
        ),
        ({"dqn": {"epsilon": {"end": -0.1}}}, r"dqn\.epsilon\.end must be greater than or equal to 0, got -0\.1"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_the_rule_and_the_nearest_key(
    values: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        config_of("gym:X-v0", values)


def test_dotted_settings_are_read_as_yaml_and_later_layers_win() -> None:
    given = settings_of(["ppo.learning_rate=3e-4", "ppo.network.widths=[32, 16]", "parallel.num_workers=null"])
    config = config_of("gym:X-v0", {"ppo": {"learning_rate": 1.0, "rows": 5}}, given)
    assert config.ppo.learning_rate.begin == 3e-4
    assert config.ppo.network.widths == (32, 16)
    assert config.ppo.rows == 5
    assert config_of("gym:X-v0", plain(config)) == config


def test_a_number_takes_the_place_of_a_presets_whole_schedule_and_a_part_of_one_keeps_the_rest() -> None:
    cartpole, rate = "gym:CartPole-v1", Schedule(3e-3, 0.0)
    assert config_of(cartpole).ppo.learning_rate == rate
    assert config_of(cartpole, settings_of(["ppo.learning_rate=3e-4"])).ppo.learning_rate == Schedule(3e-4)
    assert config_of(cartpole, settings_of(["ppo.learning_rate.end=1e-4"])).ppo.learning_rate == Schedule(3e-3, 1e-4)
    assert config_of("gym:X-v0", settings_of(["dqn.epsilon.end=0.01"])).dqn.epsilon == Schedule(1.0, 0.01, 0.2)


@pytest.mark.parametrize("text", ["ppo.rows", "=3", "ppo..rows=3"])
def test_a_setting_without_a_key_or_a_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a setting is KEY=VALUE"):
        settings_of([text])


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ({"parallel": {"use_threads": True}, "learner_set": "processes"}, ("parallel.use_threads", "learner_set")),
        ({"parallel": {"parallel_training": False}, "learner_set": "stacked"}, ("parallel_training", "learner_set")),
        ({"parallel": {"parallel_actions": True}, "turns": "simultaneous"}, ("parallel.parallel_actions", "turns")),
        ({"parallel": {"async_learning": False}, "loop": "pipelined"}, ("parallel.async_learning", "loop")),
        ({"parallel": {"enabled": False}, "learner_set": "threads"}, ("parallel.enabled", "learner_set")),
        ({"parallel": {"enabled": False, "num_workers": 2}}, ("parallel.enabled", "parallel.num_workers")),
        (
            {"parallel": {"use_threads": True, "parallel_training": False}},
            ("parallel.use_threads", "parallel.parallel_training"),
        ),
    ],
)
def test_a_finer_choice_that_contradicts_is_refused_with_both_keys(
    values: dict[str, Any], keys: tuple[str, str]
) -> None:
    with pytest.raises(UsageError, match="must not contradict") as told:
        choices_of(config_of("gym:X-v0", values))
    assert all(key in str(told.value) for key in keys)


def test_what_parallel_stands_for() -> None:
    def found(**parallel: Any) -> Any:
        return choices_of(config_of("gym:X-v0", {"parallel": parallel}))

    assert found(parallel_training=True).learner_set == "stacked"
    assert found(use_threads=True).learner_set == "threads"
    assert found(parallel_training=False).learner_set == "sequential"
    assert found(num_workers=3).workers == 3
    assert found(enabled=False).serial
    assert found(async_learning=True).loop == "pipelined"
    assert found(async_learning=True, enabled=False).serial  # the same result, computed one after the other
    assert found().loop == "sync"


@pytest.mark.parametrize(
    ("parallel", "options", "keys"),
    [
        ({"num_workers": 2}, {"workers": 3}, ("parallel.num_workers: 2", "workers (--jobs): 3")),
        ({"enabled": False}, {"backend": "process"}, ("parallel.enabled: false", "backend: process")),
        ({"enabled": False}, {"workers": 2}, ("parallel.enabled: false", "workers (--jobs): 2")),
    ],
)
def test_an_option_of_worlds_that_contradicts_is_refused_with_both_names(
    parallel: dict[str, Any], options: dict[str, Any], keys: tuple[str, str]
) -> None:
    with pytest.raises(UsageError, match="must not contradict") as told:
        stretto.train("CartPole-v1", steps=10, config={"parallel": parallel}, **options)
    assert all(key in str(told.value) for key in keys)


@pytest.mark.parametrize("wanted", [True, False])
def test_parallel_actions_ask_nothing_of_a_world_without_turns_and_sequential_ones_of_others(wanted: bool) -> None:
    config = {"parallel": {"parallel_actions": wanted}, "ppo": {"rows": 8, "epochs": 1}}
    one = stretto.train("CartPole-v1", steps=20, num_envs=2, backend="serial", config=config)
    assert one.config.turns == "simultaneous"
    given: dict[str, Any] = {"steps": 20, "num_envs": 2, "cogs": 2, "backend": "serial"}
    both = stretto.train("foundry_1", config=config, **given)
    other = stretto.train("foundry_1", config={"turns": "sequential", "ppo": config["ppo"]}, **given)
    assert both.config.turns == ("auto" if wanted else "sequential")
    assert both.agents == other.agents


@pytest.mark.parametrize(
    ("name", "learner"), [(name, one) for name, found in PRESETS.items() for one in found.learners]
)
def test_every_preset_is_a_configuration_that_its_missions_have(name: str, learner: str) -> None:
    mission = PRESETS[name].missions.replace("[0-9]", "3").rstrip("*")
    config = config_of(mission, {"learner": learner})
    assert config.preset == name
    assert config.learner == learner
    assert config.settings != config_of(mission, {"learner": learner, "preset": None}).settings
