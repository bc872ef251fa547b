"""The set of rollouts is that of a plain loop, for every backend, number of slots and workers, and after kills."""

from __future__ import annotations

import os
import re
import signal

import numpy as np
import pytest

import stretto
from stretto.collection.collector import Collector, Trials
from stretto.collection.ready_first import ReadyFirstWorlds
from stretto.collection.rollouts import Rollouts
from stretto.collection.tasks import Curriculum, rollout_tasks, split_tasks
from stretto.collection.worlds import BlockWorlds
from stretto.core import AgentPolicy, BlockAnswer, BlockPolicy, PolicyStep
from stretto.errors import InvalidAction, PolicyFailed, UsageError
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.spec import PolicySpec
from stretto.policies.strategies import make_runner
from tests.backends import OPTIONS, every_backend
from tests.collection.plain import plain_rollouts
from tests.worlds import CountTo, Crowd, Drift, GlobalDrift, TaskWorld, makes


class Chance(AgentPolicy):
    """Draws its actions, remembers how many it has drawn, and says so."""

    drawn = 0

    def step(self, observation):
        self.drawn += 1
        action = int(self.rng.integers(4))
        return PolicyStep(action, {"drawn": np.int64(self.drawn), "seen": np.float32(observation[0])})


class Remembers(BlockPolicy):
    """Computes all agents at once; what it does depends on all that an agent has seen in the trial."""

    def initial_state(self):
        return {"sum": np.float32(0), "steps": (np.int64(0),)}

    def step_block(self, observations, states, choices):
        total = states["sum"] + observations.sum(axis=-1).astype(np.float32)
        noise = choices.uniform(1)[..., 0]
        actions = (np.floor(np.abs(total)) + np.floor(3 * noise)).astype(np.int64) % 4
        after = {"sum": total, "steps": (states["steps"][0] + 1,)}
        return BlockAnswer(actions, after, {"sum": total, "steps": after["steps"], "noise": noise})


WAYS = {"lockstep": BlockWorlds, "ready-first": ReadyFirstWorlds}
both_ways_to_wait = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def collector(make, slots, policy, *, way=BlockWorlds, **options):
    worlds = way(stretto.make_vec(make, slots, copy=False, **options))
    plan = PolicyPlan(PolicySpec.of(policy), rows=8 * len(worlds.spec.agents))
    runner = make_runner([plan], worlds.spec, ["batched"], 1)
    return Collector(worlds, runner, dict.fromkeys(worlds.spec.agents, 0))


def collected(make, slots, policy, count, *, tasks=None, episodes=1, on_rollout=lambda worlds: None, **options):
    with collector(make, slots, policy, **options) as collecting:
        found = []
        for rollout in collecting.rollouts(count, Trials(0, rollout_tasks(tasks), episodes)):
            found.append(rollout)
            on_rollout(collecting.worlds)
    assert sorted(one.index for one in found) == list(range(count))
    return Rollouts(found)


@every_backend
@both_ways_to_wait
@pytest.mark.parametrize("episodes", [1, 3])
def test_rollouts_are_those_of_a_plain_loop(options, episodes, way):
    wanted = plain_rollouts(makes(Drift, 5), Chance, 11, episodes=episodes)
    for slots in (1, 4, 16):
        layout = {**options, "workers": min(slots, options["workers"])} if "workers" in options else options
        found = collected(makes(Drift, 5), slots, Chance, 11, episodes=episodes, way=way, **layout)
        assert found.digest() == wanted.digest()


def test_what_is_recorded_of_one_rollout():
    (rollout,) = collected(makes(CountTo, 2, truncates=True), 1, Chance, 1, episodes=2, backend="serial")
    assert len(rollout) == 4
    assert rollout.observations[:, 0].tolist() == [0, 1, 0, 1]
    assert rollout.last_observations[:, 0].tolist() == [2, 2]
    assert rollout.truncated.tolist() == [False, True, False, True]
    assert not rollout.terminated.any()
    assert rollout.rewards.tolist() == [float(action) for action in rollout.actions]
    assert rollout.says["drawn"].tolist() == [1, 2, 3, 4]
    assert rollout.episodes == [slice(0, 2), slice(2, 4)]
    assert rollout.returns == {"agent_0": float(rollout.actions.sum())}


@pytest.mark.parametrize("slots", [1, 3, 8, 13])
def test_a_memory_lives_through_a_trial_and_no_longer_whatever_the_width(slots):
    def sums(rollout):
        return rollout.says["sum"]

    found = collected(makes(Drift, 4), slots, Remembers, 14, episodes=2, backend="serial")
    for rollout in found:
        wanted = np.cumsum(rollout.observations.sum(axis=-1).astype(np.float32), dtype=np.float32)
        assert np.array_equal(sums(rollout), wanted)
        assert rollout.says["steps"][0].tolist() == list(range(1, len(rollout) + 1))
    assert found.digest() == collected(makes(Drift, 4), 5, Remembers, 14, episodes=2, backend="serial").digest()


@both_ways_to_wait
@pytest.mark.parametrize("policy", [Chance, Remembers])
def test_kills_leave_no_trace_in_the_set(policy, way):
    killed = []

    def kill(worlds):
        if len(killed) < 3:
            pid = worlds.envs.worker_pids[len(killed) % 2]
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    wanted = collected(makes(Drift, 6), 4, policy, 12, backend="serial")
    found = collected(makes(Drift, 6), 4, policy, 12, on_rollout=kill, way=way, **OPTIONS["process-isolated"])
    assert len(killed) == 3
    assert found.digest() == wanted.digest()


def test_worlds_that_draw_from_global_generators_have_streams_of_their_own():
    wanted = collected(makes(GlobalDrift, 4), 1, Chance, 8, backend="serial", global_rng="private")
    found = collected(makes(GlobalDrift, 4), 4, Chance, 8, backend="process", workers=4, global_rng="private")
    assert found.digest() == wanted.digest()
    assert len({rollout.observations[0].tobytes() for rollout in found}) == 8


@every_backend
def test_every_rollout_has_its_own_task_at_its_resets(options):
    found = collected(makes(TaskWorld, 2), 3, Chance, 7, tasks=lambda index, stream: 10 * index, episodes=2, **options)
    assert found.tasks == [10 * index for index in range(7)]
    assert [set(rollout.observations[:, 1]) for rollout in found] == [{10.0 * index} for index in range(7)]


@both_ways_to_wait
@pytest.mark.parametrize("slots", [1, 5])
def test_a_curriculum_looks_only_at_rollouts_below_its_barrier(slots, way):
    seen = []

    def harder(complete, stream):
        seen.append([rollout.index for rollout in complete])
        return float(len(complete)) + stream.random()

    found = collected(
        makes(TaskWorld, 3), slots, Chance, 8, tasks=Curriculum(harder, every=3), way=way, backend="serial"
    )
    assert seen == [[]] * 3 + [[0, 1, 2]] * 3 + [[0, 1, 2, 3, 4, 5]] * 2
    wanted = plain_rollouts(makes(TaskWorld, 3), Chance, 8, tasks=Curriculum(harder, every=3))
    assert found.digest() == wanted.digest()


@both_ways_to_wait
def test_after_a_barrier_slots_that_were_idle_and_one_that_was_not_begin_alike(way):
    tasks = Curriculum(lambda complete, stream: len(complete), every=4)
    found = collected(makes(Drift, 6), 3, Chance, 20, tasks=tasks, way=way, backend="serial")
    assert found.digest() == plain_rollouts(makes(Drift, 6), Chance, 20, tasks=tasks).digest()


def test_train_and_held_out_tasks_differ_and_are_drawn_from_streams_of_their_own():
    def sample(stream):
        return int(stream.integers(40))

    train, held_out = split_tasks(sample, 20, 10, seed=1)
    assert len(set(train)) == 20
    assert len(set(held_out)) == 10
    assert not set(train) & set(held_out)
    assert split_tasks(sample, 20, 5, seed=1)[0] == train
    with pytest.raises(UsageError, match="60 different tasks are needed, and only 40 were found"):
        split_tasks(sample, 60, 1)


class Decides(BlockPolicy):
    """Acts by what agents see, in any world; says what it saw."""

    def step_block(self, observations, states, choices):
        seen = observations["observation"]
        lion = seen.shape[-1] == 3
        chance = choices.uniform(2)
        actions = (5 * chance[..., 0]).astype(np.int64) if lion else (chance * [3, 2]).astype(np.int64)
        return BlockAnswer(actions, None, {"first": seen[..., 0], "chance": chance[..., 0]})


@both_ways_to_wait
@pytest.mark.parametrize("options", [OPTIONS["serial"], OPTIONS["process"]], ids=["serial", "process"])
def test_several_agents_that_come_and_go_are_recorded_each_by_itself(options, way):
    found = collected(Crowd, 4, Decides, 9, way=way, **options)
    assert found.digest() == collected(Crowd, 1, Decides, 9, backend="serial").digest()
    for rollout in found:
        lion, mouse = rollout.agents["lion_0"], rollout.agents["mouse_1"]
        assert lion.acted[0]
        assert not mouse.acted[0]  # it joins after the first step
        assert mouse.truncated.sum() == 1
        assert lion.terminated.sum() == 1
        assert not lion.acted[np.flatnonzero(lion.terminated)[0] + 1 :].any()
        assert np.array_equal(lion.says["first"][lion.acted], lion.observations["observation"][lion.acted][:, 0])


@pytest.mark.parametrize("options", [OPTIONS["serial"], OPTIONS["process"]], ids=["serial", "process"])
def test_segments_follow_each_other_and_have_every_observation_once(options):
    with collector(makes(Drift, 4), 3, Remembers, **options) as collecting:
        stream = collecting.segments(6, Trials(0))
        segments = [next(stream) for _ in range(4)]
    rows = [segment.kinds[0] for segment in segments]
    for segment, following in zip(segments, rows[1:], strict=False):
        assert np.array_equal(segment.following[0], following.observations[0])
    acted, ended = (np.concatenate([getattr(one, name) for one in rows]) for name in ("acted", "terminated"))
    assert acted.shape == (24, 3, 1)
    assert np.array_equal(~acted[1:], ended[:-1])  # after an end comes its last observation, and nobody acts on it


def test_segments_depend_neither_on_the_backend_nor_on_the_way_to_wait():
    def digest(**options):
        with collector(makes(Drift, 4), 4, Remembers, **options) as collecting:
            stream = collecting.segments(5, Trials(3))
            return [kind.map(np.ndarray.tobytes) for _ in range(3) for kind in next(stream).kinds]

    wanted = digest(backend="serial")
    assert digest(backend="process", workers=2) == wanted
    assert digest(backend="process", workers=2, way=ReadyFirstWorlds) == wanted
    assert digest(backend="serial", way=ReadyFirstWorlds) == wanted


def test_environments_that_reset_otherwise_are_refused():
    with (
        stretto.make_vec(Drift, 2, autoreset_mode="SameStep", backend="serial") as envs,
        pytest.raises(UsageError, match="autoreset_mode='SameStep'; leave autoreset_mode out"),
    ):
        BlockWorlds(envs)


class FailsInRolloutTwo(AgentPolicy):
    """Raises, or does what no space contains, in one world alone: by its first observation."""

    def step(self, observation):
        if observation[1] == 20:
            return self.fail()
        return 0

    def fail(self):
        raise ZeroDivisionError("it was the third")


class ActsWrongInRolloutTwo(FailsInRolloutTwo):
    def fail(self):
        return 9


class FailsTogether(BlockPolicy):
    def step_block(self, observations, states, choices):
        raise ZeroDivisionError("all of them")


@both_ways_to_wait
@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (FailsInRolloutTwo, r"in rollout 2, with the task 20$"),
        (ActsWrongInRolloutTwo, r"in rollout 2, with the task 20$"),
        (FailsTogether, r"in rollout 0, with the task 0, or in another rollout that was asked with it$"),
    ],
)
def test_an_error_of_a_policy_names_the_rollout(policy, sentence, way):
    with pytest.raises((PolicyFailed, InvalidAction)) as caught:
        collected(makes(TaskWorld, 2), 4, policy, 4, tasks=lambda index, _: 10 * index, way=way, backend="serial")
    assert [note for note in caught.value.__notes__ if re.search(sentence, note)]
