"""Presets: settings that are known to work in a world, which a run has unless it is given others."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stretto.errors import UsageError
from stretto.registry import near_or_all

AUTO = "auto"


@dataclass(frozen=True)
class Preset:
    """Settings by learner, for missions whose names fit a pattern."""

    missions: str
    learners: Mapping[str, Mapping[str, Any]]


PRESETS = {
    "CartPole-v1": Preset(
        "gym:CartPole-v1*",
        {
            "ppo": {
                "steps": 100_000,
                "num_envs": 16,
                "ppo": {
                    "rows": 32,
                    "batch": 128,
                    "epochs": 5,
                    "learning_rate": {"begin": 3e-3, "end": 0.0},
                    "discount": 0.98,
                    "smoothing": 0.8,
                },
            },
            # With a discount of 0.99, agents fell back late: their mean values were about 100 or more, which no policy earns.
            "dqn": {
                "steps": 50_000,
                "num_envs": 8,
                "dqn": {
                    "rows": 8,
                    "updates": 32,
                    "batch": 128,
                    "n_steps": 3,
                    "target_average": 0.01,
                    "dueling": True,
                    "learning_rate": {"begin": 1e-3, "end": 0.0},
                    "discount": 0.98,
                    "epsilon": {"begin": 1.0, "end": 0.04, "share": 0.2},
                    "network": {"widths": [128, 128]},
                },
            },
        },
    ),
    "Acrobot-v1": Preset(
        "gym:Acrobot-v1*",
        {
            "ppo": {
                "steps": 300_000,
                "num_envs": 16,
                "ppo": {"rows": 256, "batch": 64, "epochs": 4, "smoothing": 0.94, "normalize_observations": True},
            },
        },
    ),
    "LunarLander": Preset(
        "gym:LunarLander-v[0-9]*",
        {
            "ppo": {
                "steps": 1_000_000,
                "num_envs": 16,
                "ppo": {
                    "rows": 1024,
                    "batch": 64,
                    "epochs": 4,
                    "discount": 0.999,
                    "smoothing": 0.98,
                    "entropy": 0.01,
                },
            },
        },
    ),
    "Pendulum-v1": Preset(
        "gym:Pendulum-v1*",
        {
            "ppo": {
                "steps": 100_000,
                "num_envs": 4,
                "ppo": {
                    "rows": 1024,
                    "batch": 64,
                    "epochs": 10,
                    "learning_rate": 1e-3,
                    "discount": 0.9,
                    "normalize_rewards": True,
                },
            },
            "sac": {
                "steps": 20_000,
                "num_envs": 4,
                "sac": {"rows": 8, "updates": 32, "learning_starts": 100, "learning_rate": 1e-3, "buffer": 20_000},
            },
        },
    ),
    "Hopper": Preset(
        "gym:Hopper-v[0-9]*",
        {
            "ppo": {
                "steps": 1_000_000,
                "num_envs": 4,
                "ppo": {
                    "rows": 512,
                    "batch": 64,
                    "epochs": 10,
                    "normalize_observations": True,
                    "normalize_rewards": True,
                },
            },
            # One update for each step, as is usual with SAC. It was not run to its end here.
            "sac": {
                "steps": 200_000,
                "num_envs": 4,
                "sac": {"rows": 4, "updates": 16, "learning_starts": 10_000, "buffer": 200_000},
            },
        },
    ),
    "pointgoal": Preset(
        "pointgoal",
        {
            "ppo": {
                "steps": 600_000,
                "num_envs": 32,
                "trials": {"episodes": 2, "rewards": True, "boundaries": True, "train_tasks": 200, "eval_tasks": 40},
                "evaluation": {"episodes": 40},
                "ppo": {
                    "rows": 84,
                    "batch": 672,
                    "epochs": 4,
                    "sequence": 42,
                    "learning_rate": {"begin": 1e-3, "end": 0.0},
                    "discount": 0.97,
                    "normalize_observations": True,
                    "normalize_rewards": True,
                    "network": {"widths": [64], "memory": "gru"},
                },
            },
        },
    ),
    # What a cog carries decides where it must go, and is among 7 numbers beside 847 of its view. Where they did not weigh the
    # same, most agents learned to gather and did not find the forge in time.
    "foundry": Preset(
        "foundry*",
        {
            "ppo": {
                "steps": 1_200_000,
                "num_envs": 64,
                "ppo": {
                    "rows": 32,
                    "batch": 256,
                    "epochs": 2,
                    "learning_rate": 1e-3,
                    "entropy": 0.03,
                    "normalize_observations": True,
                    "normalize_rewards": True,
                    "network": {"shared_layers": 1, "balance_parts": True},
                },
            },
        },
    ),
}


def preset_for(mission: str, learner: str, wanted: str | None) -> tuple[str | None, Mapping[str, Any]]:
    """Return the preset that a run has, by name, and its settings; `auto` is the one for its mission, if there is any."""
    if wanted is None:
        return None, {}
    if wanted != AUTO:
        if wanted not in PRESETS:
            raise UsageError(f"no preset is called {wanted!r}{near_or_all(wanted, PRESETS)}")
        found = PRESETS[wanted].learners
        if learner not in found:
            raise UsageError(f"the preset {wanted} has settings for {', '.join(found)}, got the learner {learner!r}")
        return wanted, found[learner]
    for name, preset in PRESETS.items():
        if learner in preset.learners and fnmatch.fnmatchcase(mission, preset.missions):
            return name, preset.learners[learner]
    return None, {}
