"""Segments of worlds that were brought to where others were are those that the others would have given."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import stretto
from stretto.collection.collector import Collector, Trials
from stretto.collection.ready_first import ReadyFirstWorlds
from stretto.collection.tasks import rollout_tasks
from stretto.collection.worlds import BlockWorlds
from stretto.core import BlockAnswer, BlockPolicy, WorldSpec
from stretto.errors import SlotTruncated, UsageError
from stretto.policies.actors import PolicyPlan
from stretto.policies.block_runner import BlockRunner
from stretto.policies.spec import PolicySpec
from stretto.policies.states import map_state
from stretto.policies.strategies import make_runner
from tests.worlds import Crowd, Drift, GlobalDrift, TaskWorld, World, makes

SLOTS, ROWS = 4, 7


class Remembers(BlockPolicy):
    """What it does depends on all that an agent has seen in the trial, and on its draws."""

    def initial_state(self):
        return {"sum": np.float64(0), "steps": (np.int64(0),)}

    def step_block(self, observations, states, choices):
        seen = observations["observation"] if isinstance(observations, dict) else observations
        total = states["sum"] + np.abs(seen).sum(axis=-1)
        after = {"sum": total, "steps": (states["steps"][0] + 1,)}
        shape = self.world.action_spaces[self.world.agents[0]].shape
        drawn = choices.uniform(int(np.prod(shape))).reshape(*total.shape, *shape)
        actions = np.floor(2 * drawn + np.floor(total).reshape(*total.shape, *[1] * len(shape))).astype(np.int64) % 2
        return BlockAnswer(actions, after, {"sum": total, "steps": after["steps"][0]})


def policies(worlds):
    """Return a policy for each kind of agents, and which of them each agent follows."""
    specs = [
        WorldSpec(k.agents, dict.fromkeys(k.agents, k.observation_space), dict.fromkeys(k.agents, k.action_space))
        for k in worlds.kinds
    ]
    followed = {agent: number for number, kind in enumerate(worlds.kinds) for agent in kind.agents}
    return [Remembers(spec) for spec in specs], followed


class Segmenting:
    """Segments of a world, with what makes them."""

    def __init__(self, make, way=BlockWorlds, episodes=1, tasks=None, **options):
        options = {"backend": "serial", **options}
        self.worlds = way(stretto.make_vec(make, SLOTS, copy=False, **options))
        several, followed = policies(self.worlds)
        self._collector = Collector(self.worlds, BlockRunner(several, SLOTS), followed)
        trials = Trials(5, rollout_tasks(tasks), episodes)
        self.segments = self._collector.segments(ROWS, trials, resumable=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._collector.close()

    def digests(self, count):
        return [_flat(next(self.segments)) for _ in range(count)]


def _flat(segment):
    found = []
    for kind in segment.kinds:
        kind.map(lambda array: found.append((array.dtype.str, array.shape, array.tobytes())))
    map_state(lambda array: found.append(np.asarray(array).tobytes()), list(segment.following))
    return found


def goes_on_alike(make, *, before=3, after=4, resumed_with=None, **how):
    """Compare segments of an undisturbed collector with those after a resume."""
    with Segmenting(make, **how) as one:
        one.digests(before)
        state = one.segments.state()
        wanted = one.digests(after)
    with Segmenting(make, **{**how, **(resumed_with or {})}) as other:
        other.segments.restore(state)
        assert other.digests(after) == wanted


WORLDS = {
    "CartPole": "CartPole-v1",
    "an own generator": makes(Drift, 6),
    "private generators": makes(GlobalDrift, 6),
    "agents that die": makes(Crowd),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("before", [1, 2, 5])
def test_a_collector_goes_on_in_the_middle_of_episodes(world, before):
    goes_on_alike(world, before=before)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_it_goes_on_elsewhere_and_with_other_numbers_of_workers(world):
    goes_on_alike(world, resumed_with={"backend": "process", "workers": 2})
    goes_on_alike(world, backend="process", workers=2, resumed_with={"backend": "thread", "workers": 4})


def test_it_goes_on_with_the_other_way_to_wait():
    goes_on_alike(makes(Drift, 6), backend="process", workers=2, resumed_with={"way": ReadyFirstWorlds})
    goes_on_alike(
        makes(Drift, 6), backend="process", workers=2, way=ReadyFirstWorlds, resumed_with={"way": BlockWorlds}
    )


@pytest.mark.parametrize("before", range(1, 5))
def test_trials_of_several_episodes_and_their_tasks_go_on(before):
    goes_on_alike(makes(TaskWorld, 3), before=before, episodes=3, tasks=lambda index, stream: float(stream.random()))


def test_a_state_may_be_taken_and_resumed_again_and_again():
    with Segmenting(makes(Drift, 20)) as one:
        wanted = one.digests(6)
    found, state = [], None
    for _ in range(6):
        with Segmenting(makes(Drift, 20)) as one:
            if state is not None:
                one.segments.restore(state)
            found += one.digests(1)
            state = one.segments.state()
    assert found == wanted


def test_a_worker_that_dies_after_a_resume_is_recovered():
    with Segmenting(makes(Drift, 30)) as one:
        one.digests(2)
        state = one.segments.state()
        wanted = one.digests(2)
    with Segmenting(makes(Drift, 30), backend="process", workers=2, isolate=True) as other:
        other.segments.restore(state)
        os.kill(other.worlds.envs.worker_pids[0], signal.SIGKILL)
        assert other.digests(2) == wanted


class Unrepeatable(World):
    """Observes how many worlds of its class were ever made."""

    made = 0

    def __init__(self):
        super().__init__()
        Unrepeatable.made += 1
        self._number = Unrepeatable.made

    def see(self):
        return np.array([self.steps, self._number], np.float64)


def test_a_world_that_does_not_repeat_itself_is_truncated_with_a_warning():
    with Segmenting(Unrepeatable) as one:
        one.digests(1)
        state = one.segments.state()
    with Segmenting(Unrepeatable) as other:
        with pytest.warns(SlotTruncated, match="does not repeat itself"):
            other.segments.restore(state)
        assert next(other.segments).kinds[0].truncated[0].all()


def test_what_cannot_be_saved_is_refused_before_the_first_step():
    with stretto.make_vec("CartPole-v1", 2, backend="serial", copy=False) as envs:
        worlds = BlockWorlds(envs)
        runner = make_runner([PolicyPlan(PolicySpec.of("random"))], worlds.spec, ["batched"], 1)
        with pytest.raises(UsageError, match="policies that compute in blocks"):
            Collector(worlds, runner, {"agent_0": 0}).segments(3, Trials(0), resumable=True)
