"""The loop that plays: who takes which episode, and what an agent is charged for its time, to the second."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from stretto.adapters.agents import as_agents
from stretto.adapters.local import LocalWorlds
from stretto.core import AgentPolicy, MultiAgentPolicy
from stretto.episode_steps import FORFEIT, EpisodePlan, TimeLimits
from stretto.errors import PolicyFailed
from stretto.evaluation.playing.episodes import play_to_end
from stretto.games.foundry import Foundry
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.questions import Decision
from stretto.policies.runners import InPlace
from stretto.policies.spec import PolicySpec
from stretto.rollout import rollout
from tests.worlds import CountTo, Drift


class Clocked:
    """A runner in which everybody does nothing, and takes the seconds that were given for each step and agent."""

    def __init__(self, *steps):
        self.steps = iter(steps)
        self.limits = set()

    def begin(self, roles):
        pass

    def choosers(self, episode):
        return None

    def team(self, who):
        return None

    def ask(self, questions, limit_seconds=None):
        self.questions = questions
        self.limits.add(limit_seconds)

    def replies(self):
        return [Decision(0, seconds) for _, seconds in zip(self.questions, next(self.steps), strict=True)]

    def end(self, episode):
        return frozenset()

    def close(self):
        pass


def played(runner, steps, default_action=FORFEIT, each_step=True, **limits):
    worlds = LocalWorlds(lambda _: as_agents(Foundry(2)), 1)
    plan = EpisodePlan(0, 1, {"cog_0": 0, "cog_1": 0})
    limits = TimeLimits(**limits)
    run = rollout(
        worlds, runner, [plan], max_steps=steps, limits=limits, default_action=default_action, each_step=each_step
    )
    found = play_to_end(worlds, run, ["clocked"])
    worlds.close()
    return found[0]


def test_each_agent_has_a_bank_of_its_own_and_pays_only_what_exceeds_its_time():
    # cog_0 exceeds its second by 1 and 2, which empties the bank of 3, and then by 0.5; cog_1 by 2 and 1.
    runner = Clocked((2, 1), (1, 1), (3, 3), (1, 1), (1.5, 2))
    one = played(runner, 5, action_seconds=1.0, overage_seconds=3.0, default_action=0)
    assert one.overdue == {"cog_0": 1}
    assert (one.steps, one.failure) == (5, None)


@pytest.mark.parametrize("each_step", [True, False])
def test_an_agent_that_was_late_once_is_to_blame_for_what_it_does_later(each_step):
    class Wrong(Clocked):
        def replies(self):
            late, wrong = next(self.steps)
            return [Decision("up" if wrong else 0, late), Decision(0, 0.0)]

    one = played(Wrong((2, False), (0, False), (0, True)), 9, 0, each_step, action_seconds=1.0)
    assert one.overdue == {"cog_0": 1}
    assert (one.failure.kind, one.failure.agent, one.failure.step) == ("InvalidAction", "cog_0", 3)


def test_once_the_bank_is_empty_every_late_step_counts():
    runner = Clocked((5, 1), (2, 1), (1, 1), (1.01, 1))
    one = played(runner, 4, action_seconds=1.0, overage_seconds=3.0, default_action=0)
    assert one.overdue == {"cog_0": 3}


def test_without_a_default_action_the_first_late_step_ends_the_episode():
    one = played(Clocked((1, 1), (1, 1.5)), 5, action_seconds=1.0)
    assert one.overdue == {"cog_1": 1}
    assert (one.failure.kind, one.failure.agent, one.failure.step, one.failure.lost) == (
        "PolicyOverdue",
        "cog_1",
        2,
        False,
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"hang_seconds": 60.0}, 60.0),
        ({"hang_seconds": 60.0, "action_seconds": 0.1, "overage_seconds": 2.0}, 12.1),  # and 10 s for the way
        ({"hang_seconds": 1.0, "action_seconds": 0.1}, 1.0),
        ({"hang_seconds": 1.0, "action_seconds": 5.0}, 5.0),  # never before its time is up
        ({"action_seconds": 5.0}, 15.0),
    ],
)
def test_a_policy_is_ended_only_when_it_hangs_and_not_when_it_is_merely_late(limits, expected):
    runner = Clocked((0, 0))
    played(runner, 1, **limits)
    assert runner.limits == {expected}


# ---- slots and episodes ----


def doing_nothing(worlds):
    return InPlace([PolicyPlan(PolicySpec.of("noop"))], worlds.spec, batched=True)


def test_a_free_slot_takes_the_next_episode_and_all_are_played_once():
    worlds = LocalWorlds(lambda slot: as_agents(CountTo(limit=2 + slot)), 3)
    plans = [EpisodePlan(number, 10 + number, {"agent_0": 0}) for number in range(7)]
    begun, over, together = {}, [], []
    for steps in rollout(worlds, doing_nothing(worlds), plans):
        together.append([step.slot for step in steps])
        for step in steps:
            if not step.actions:
                begun[step.plan.episode] = step.slot
            if step.over:
                over.append((step.plan.episode, step.steps))
    worlds.close()
    assert list(begun) == list(range(7))
    assert sorted(over) == [(number, 2 + begun[number]) for number in range(7)]
    assert together[:3] == [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    assert together[3] == [0]  # the next episode begins as soon as there is room, while the others go on


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_episodes_are_the_same_however_many_are_played_in_step(slots):
    def rewards(count):
        worlds = LocalWorlds(lambda _: as_agents(Drift()), count)
        plans = [EpisodePlan(number, 100 + number, {"agent_0": 0}) for number in range(6)]
        found = play_to_end(
            worlds, rollout(worlds, doing_nothing(worlds), plans, max_steps=20), ["noop"], keep_digests=True
        )
        worlds.close()
        return {number: (one.rewards, one.steps, one.digests) for number, one in found.items()}

    assert rewards(slots) == rewards(3)


class Breaks(CountTo):
    def move(self, action):
        if self.steps == 2 and self.limit == 9:
            raise ValueError("broken")
        return super().move(action)


def test_a_world_that_raises_ends_its_own_episode_and_no_other():
    worlds = LocalWorlds(lambda slot: as_agents(Breaks(limit=9 if slot == 1 else 4)), 3)
    plans = [EpisodePlan(number, 1, {"agent_0": 0}) for number in range(3)]
    found = play_to_end(worlds, rollout(worlds, doing_nothing(worlds), plans), ["noop"])
    worlds.close()
    assert [found[number].failure and found[number].failure.kind for number in range(3)] == [None, "ValueError", None]
    assert [found[number].steps for number in (0, 2)] == [4, 4]


def test_whoever_stops_listening_ends_all_episodes():
    worlds = LocalWorlds(lambda _: as_agents(CountTo(limit=50)), 2)
    runner = doing_nothing(worlds)
    ended, end = [], runner.end
    runner.end = lambda episode: ended.append(episode) or end(episode)
    steps = rollout(worlds, runner, [EpisodePlan(number, 1, {"agent_0": 0}) for number in range(2)])
    next(steps)
    next(steps)
    steps.close()
    worlds.close()
    assert ended == [0, 1]


# ---- an episode that is played alone ----


class Asked(InPlace):
    """Never says what chooses for an agent, so that agents are asked."""

    def choosers(self, episode):
        return None


def third(bad):
    """Return a policy that does nothing twice, and then what is bad."""

    class Third:
        def __init__(self):
            self.steps = 0

        def step(self, observation):
            self.steps += 1
            if self.steps < 3:
                return 0
            if isinstance(bad, Exception):
                raise bad
            return bad

    return Third


CASES = {
    "to its end": ("noop", lambda: CountTo(limit=5), None),
    "to the limit": ("noop", lambda: CountTo(limit=5), 3),
    "several agents": ("random", lambda: Foundry(3), 12),
    "a world that raises": ("noop", lambda: Breaks(limit=9), None),
    "a policy that raises": (third(ValueError("enough")), lambda: CountTo(limit=5), None),
    "a policy that exits": (third(SystemExit(3)), lambda: CountTo(limit=5), None),
    "an action that is none": (third("up"), lambda: CountTo(limit=5), None),
    "an action out of range": (third(7_000_000), lambda: CountTo(limit=5), None),
}


@pytest.mark.parametrize(("policy", "make", "most"), CASES.values(), ids=CASES)
def test_an_episode_is_the_same_whether_it_is_played_as_a_whole_step_by_step_or_by_asking(policy, make, most):
    def found(kind, each_step):
        worlds, position = LocalWorlds(lambda _: as_agents(make()), 1), memoryview(array("q", [0]))
        runner = kind([PolicyPlan(PolicySpec.of(policy))], worlds.spec, batched=True)
        plans = [EpisodePlan(number, 5, dict.fromkeys(worlds.spec.agents, 0)) for number in range(2)]
        moments = rollout(worlds, runner, plans, max_steps=most, each_step=each_step, position=position)
        one = play_to_end(worlds, moments, ["tested"])[1]
        worlds.close()
        failure = one.failure and (one.failure.kind, one.failure.message, one.failure.agent, one.failure.step)
        return one.steps, one.rewards if failure is None else {}, one.statistics, failure, position[0]

    whole = found(InPlace, False)
    assert whole[:4] == found(InPlace, True)[:4] == found(Asked, True)[:4]
    if whole[3] is None:
        assert whole[4] == found(InPlace, True)[4] == found(Asked, True)[4] == 2 * (1 + whole[0])


def test_steps_of_an_episode_may_come_together():
    def steps(each_step, slots=1):
        worlds = LocalWorlds(lambda _: as_agents(CountTo(limit=4)), slots)
        plans = [EpisodePlan(number, 1, {"agent_0": 0}) for number in range(slots)]
        moments = rollout(worlds, doing_nothing(worlds), plans, each_step=each_step)
        return [[step.steps for step in moment] for moment in moments]

    assert steps(each_step=True) == [[0], [1], [2], [3], [4]]
    assert steps(each_step=False) == [[0], [4]]
    assert steps(each_step=False, slots=2) == [[0, 0], [4, 4]]


# ---- episodes whose agents are asked at once ----


class Uneven(CountTo):
    """Its episodes differ in length."""

    def reset(self, *, seed=None, options=None):
        self.limit = 3 + seed % 4
        return super().reset(seed=seed)


class Weighing(MultiAgentPolicy):
    """What an agent does follows from all that it has seen, from its stream, and from its row."""

    def agent_policy(self, agent):
        made = AgentPolicy()
        made.seen = 0.0
        return made

    def step_batch(self, agent_policies, observations):
        rows = enumerate(zip(agent_policies, observations, strict=True))
        return [self.weighed(row, one, seen) for row, (one, seen) in rows]

    def weighed(self, row, one, seen):
        one.seen += float(np.sum(seen)) + row / 8
        return int(7 * one.seen + one.rng.integers(9)) % 2


class Questioned(InPlace):
    """Never chooses for many at once but by questions."""

    def team(self, who):
        return None


class Unquestioned(InPlace):
    """Takes note of how many are asked at once, and is asked no question."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = []

    def team(self, who):
        team = super().team(who)
        return lambda seen: self.asked.append(len(who)) or team(seen)

    def ask(self, questions, limit_seconds=None):
        raise AssertionError("it was asked a question")


def played_in_step(kind, rows=4, each_step=True, **options):
    worlds = LocalWorlds(lambda _: as_agents(Uneven()), 3)
    runner = kind([PolicyPlan(PolicySpec.of(Weighing), rows=rows)], worlds.spec, **{"batched": True, **options})
    plans = [EpisodePlan(number, 7 + number, {"agent_0": 0}, first_row=number % 3) for number in range(5)]
    steps = [
        (one.plan.episode, one.steps, dict(one.actions), one.over)
        for together in rollout(worlds, runner, plans, each_step=each_step)
        for one in together
    ]
    worlds.close()
    return runner, steps


def test_agents_of_several_episodes_do_the_same_whether_they_are_asked_by_questions_or_not():
    runner, steps = played_in_step(Unquestioned)
    assert steps == played_in_step(Questioned)[1] == played_in_step(InPlace, batched=False)[1]
    assert len({actions["agent_0"] for _, _, actions, _ in steps if actions}) == 2
    assert set(runner.asked) == {1, 2, 3}


def test_episodes_in_step_end_the_same_if_nobody_looks_at_their_steps():
    runner, steps = played_in_step(Unquestioned, each_step=False)
    stepwise, each = played_in_step(Unquestioned)
    assert [one for one in steps if one[3]] == [one for one in each if one[3]]
    assert runner.asked == stepwise.asked
    assert len(steps) == 2 * 5  # the beginning and the end of each


def test_what_a_policy_raises_for_many_at_once_ends_them_all():
    class Tired(Weighing):
        def step_batch(self, agent_policies, observations):
            raise ValueError("that is enough")

    worlds = LocalWorlds(lambda _: as_agents(Uneven()), 2)
    runner = InPlace([PolicyPlan(PolicySpec.of(Tired), rows=4)], worlds.spec, batched=True)
    plans = [EpisodePlan(number, number, {"agent_0": 0}, first_row=number) for number in range(2)]
    with pytest.raises(PolicyFailed, match="that is enough") as raised:
        list(rollout(worlds, runner, plans))
    assert raised.value.together
    worlds.close()
