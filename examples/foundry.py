"""Foundry: eight agents learn to gather ores and to forge hearts of them, each from its own experience alone.

With the preset for Foundry this takes some minutes on two cores; `python foundry.py 20000` is a short try. Everything is
kept in the folder foundry-run: report.html has the curves, and `stretto play foundry_1 --cogs 8 -p foundry-run` shows
the agents.
"""

import sys

import stretto

steps = int(sys.argv[1]) if len(sys.argv) > 1 else None  # None: as many as the preset says
every = 100_000 if steps is None else max(1, steps // 4)
report = stretto.train(
    "foundry_1",
    "ppo",
    cogs=8,
    steps=steps,
    eval_every=every,
    out="foundry-run",
    config={"evaluation": {"greedy": False}},
)
print("mean reward of an agent in 20 held-out episodes, with actions drawn as in training:")
for found in report.evaluations:
    print(f"{found['steps']:>9,} steps {found['return']:7.3f}")
print({agent: round(reward, 2) for agent, reward in report.evaluations[-1]["agents"].items()})
