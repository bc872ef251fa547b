"""Agents that learn to find a goal: each trial has a new one, which only the rewards of its first steps tell of.

python examples/learn_to_learn.py [steps]
"""

import sys

import stretto

SETTINGS = {
    "num_envs": 32,
    "trials": {"episodes": 2, "rewards": True, "boundaries": True, "train_tasks": 200, "eval_tasks": 40},
    "evaluation": {"every": 100_000, "episodes": 40},
}

if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 600_000
    report = stretto.train("pointgoal", "ppo", steps=steps, config=SETTINGS, out="learn_to_learn")
    for number, one in enumerate(report.evaluations[-1]["by_episode"], 1):
        print(f"episode {number} of a trial: return {one['return']:.1f} [{one['low']:.1f}, {one['high']:.1f}]")
