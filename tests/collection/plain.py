"""The reference: one world after the other, one step after the other, with nothing of a vector environment."""

from __future__ import annotations

import numpy as np

from stretto.collection.collector import Trials
from stretto.collection.experience import Experience, Rollout
from stretto.collection.rollouts import Rollouts
from stretto.collection.tasks import rollout_tasks
from stretto.core import PolicyStep


def plain_rollouts(make_env, make_policy, count, *, tasks=None, episodes=1, seed=0, see=lambda seen, flag, task: seen):
    """Play `count` trials of a world with one agent, each in a world and with a policy of its own.

    `see(observation, whether a later episode of the trial begins with it, task)` is what the policy sees.
    """
    trials = Trials(seed, rollout_tasks(tasks), episodes)
    found = []
    for index in range(count):
        rollout = _play(make_env(), make_policy(), trials.trial(index), see)
        trials.add(rollout)
        found.append(rollout)
    return Rollouts(found)


def _play(env, policy, trial, see):
    policy.reset(trial.tree.child("policy", "agent_0").generator())
    rows, ends = [], []
    for number in range(trial.episodes):
        begin = trial.episode(number)
        observation = see(env.reset(seed=begin.seed, options=begin.options)[0], number > 0, trial.task)
        over = False
        while not over:
            chosen = policy.step(np.array(observation))
            action, says = chosen if isinstance(chosen, PolicyStep) else (chosen, {})
            following, reward, terminated, truncated, _ = env.step(action)
            rows.append((np.array(observation), action, True, reward, terminated, truncated, says))
            observation, over = see(following, False, trial.task), terminated or truncated
        ends.append(len(rows))
        nothing = {name: np.zeros_like(value) for name, value in rows[-1][6].items()}
        rows.append((np.array(observation), np.zeros_like(rows[-1][1]), False, 0.0, False, False, nothing))
    observations, actions, acted, rewards, terminated, truncated, says = zip(*rows, strict=True)
    columns = {
        "observations": np.stack(observations),
        "actions": np.array(actions, np.int64),
        "acted": np.array(acted),
        "rewards": np.array(rewards, np.float64),
        "terminated": np.array(terminated),
        "truncated": np.array(truncated),
    }
    kind = Experience(
        ("agent_0",),
        **{name: column[:, None] for name, column in columns.items()},
        says={name: np.array([one[name] for one in says])[:, None] for name in says[0]},
    )
    return Rollout(trial.index, trial.seed, trial.task, tuple(ends), (kind,))
