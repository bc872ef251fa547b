"""What a collector gives is what a buffer takes: the segments and rollouts of any agents of one kind."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from stretto.collection.collector import Trials
from stretto.collection.experience import Rollout
from stretto.collection.pieces import piece_of
from stretto.errors import UsageError
from stretto.storage import (
    Block,
    SegmentBuffer,
    SegmentLayout,
    SequenceBuffer,
    SequenceLayout,
    TransitionBuffer,
    TransitionLayout,
)
from tests.backends import OPTIONS
from tests.collection.test_collector import Decides, Remembers, collected, collector
from tests.worlds import Crowd, Drift, makes

EXTRAS = {"noise": ((), np.float64), "steps/0": ((), np.int64)}


WORLDS = {
    "one agent": (makes(Drift, 4), Remembers, EXTRAS),
    "agents that come and go": (makes(Crowd, 6), Decides, {"chance": ((), np.float32)}),
}
every_world = pytest.mark.parametrize("case", WORLDS.values(), ids=WORLDS)


def segments_of(make, policy, slots, horizon, count, **options):
    """Some segments of a collector, and the kinds of their agents."""
    with collector(make, slots, policy, **options) as collecting:
        kinds = collecting.worlds.kinds
        return list(islice(collecting.segments(horizon, Trials(0)), count)), kinds


def block_of(kind, agents=None, lanes=1, extras=EXTRAS):
    return Block(agents or kind.agents, kind.observation_space, kind.action_space, lanes, extras)


def leaf(observations):
    """The leaf of observations that tells them apart."""
    return observations["observation"] if isinstance(observations, dict) else observations


def steps_of(rows, after):
    """The decisions of one agent in one lane, row by row: what it saw, its rewards until it acts again, what it saw then.

    A discount is 0 after a termination. Decisions of which it is not known what followed are left out.
    """
    seen, acted, rewards, terminated, truncated = rows
    found = []
    seen = [*seen.tolist(), after]
    for row in np.flatnonzero(acted):
        total = np.float32(0)
        for i in range(row, len(acted)):
            total += np.float32(rewards[i])
            if terminated[i] or truncated[i]:
                found.append((seen[row], total, 0.0 if terminated[i] else 0.5, seen[i + 1]))
                break
            if i + 1 < len(acted) and acted[i + 1]:
                found.append((seen[row], total, 0.5, seen[i + 1]))
                break
    return found


def drawn_steps(buffer):
    """All decisions of each agent that a buffer shows."""
    with buffer.snapshot() as snapshot:
        found = []
        for agent in range(len(buffer.layout.block.agents)):
            taken = snapshot.range
            there = np.setdiff1d(np.arange(taken.first[agent], taken.last[agent]), taken.unfinished[agent])
            numbers = np.repeat(there[None], len(taken.first), axis=0)
            batch = snapshot.transitions(numbers, discount=0.5)
            columns = batch.observations, batch.rewards, batch.discounts, batch.next_observations
            seen, rewards, discounts, after = (leaf(column)[agent].tolist() for column in columns)
            found.append(list(zip(seen, rewards, discounts, after, strict=True)))
        return found


def in_one_order(steps):
    return sorted((tuple(seen), float(reward), discount, tuple(after)) for seen, reward, discount, after in steps)


@pytest.mark.parametrize("options", [OPTIONS["serial"], OPTIONS["process"]], ids=["serial", "process"])
@every_world
def test_every_transition_of_segments_is_right(case, options):
    world, policy, extras = case
    segments, kinds = segments_of(world, policy, 3, 6, 7, **options)
    for k, kind in enumerate(kinds):
        names = ("observations", "acted", "rewards", "terminated", "truncated")
        columns = [np.concatenate([leaf(getattr(segment.kinds[k], name)) for segment in segments]) for name in names]
        after = leaf(segments[-1].following[k])
        for agents in {kind.agents, kind.agents[-1:], kind.agents[::-1]}:
            with TransitionBuffer(TransitionLayout(block_of(kind, agents, 3, extras), 400, 6)) as buffer:
                for segment in segments:
                    buffer.extend(piece_of(segment, buffer.layout.block))
                found = drawn_steps(buffer)
            for agent, mine in zip(agents, found, strict=True):
                j = kind.agents.index(agent)
                wanted = [
                    step
                    for lane in range(3)
                    for step in steps_of([column[:, lane, j] for column in columns], after[lane, j].tolist())
                ]
                assert len(wanted) > 20
                assert all(any(after) for *_, after in wanted)  # the last observation of an agent that ended is there
                assert in_one_order(mine) == in_one_order(wanted)


@every_world
def test_every_transition_of_rollouts_is_right_and_their_observations_are_stored_once(case):
    world, policy, extras = case
    rollouts = collected(world, 4, policy, 9, episodes=2, backend="serial")
    with collector(world, 1, policy, backend="serial") as collecting:
        kinds = collecting.worlds.kinds
    for k, kind in enumerate(kinds):
        with TransitionBuffer(TransitionLayout(block_of(kind, extras=extras), 400, 40)) as buffer:
            for rollout in rollouts:
                buffer.extend(piece_of(rollout, buffer.layout.block))
            assert buffer._ring.head == sum(rollout.ends[-1] + 1 for rollout in rollouts)
            found = drawn_steps(buffer)
        for j, mine in enumerate(found):
            wanted = []
            for rollout in rollouts:
                one = rollout.kinds[k]
                rows = [
                    c[:, j] for c in (leaf(one.observations), one.acted, one.rewards, one.terminated, one.truncated)
                ]
                wanted += steps_of(rows, None)
            assert in_one_order(mine) == in_one_order(wanted)
            assert len(wanted) == sum(int(rollout.kinds[k].acted[:, j].sum()) for rollout in rollouts)


def test_a_segment_buffer_shows_a_segment_as_it_is():
    segments, (kind,) = segments_of(makes(Drift, 4), Remembers, 3, 6, 2, backend="serial")
    with SegmentBuffer(SegmentLayout(block_of(kind, lanes=3), 6)) as buffer:
        for segment in segments:
            buffer.extend(piece_of(segment, buffer.layout.block))
            (rows,) = segment.kinds
            with buffer.snapshot() as shown:
                for name in ("observations", "actions", "acted", "terminated", "truncated"):
                    assert getattr(shown, name).tolist() == getattr(rows, name).tolist()
                assert shown.next_observations.tolist() == segment.following[0].tolist()
                assert shown.extras["noise"].tolist() == rows.says["noise"].tolist()
                assert shown.extras["steps/0"].tolist() == rows.says["steps"][0].tolist()


def test_a_sequence_buffer_keeps_trials_whole_with_last_observations_inside():
    rollouts = collected(makes(Drift, 4), 4, Remembers, 5, episodes=3, backend="serial")
    with collector(makes(Drift, 4), 1, Remembers, backend="serial") as collecting:
        (kind,) = collecting.worlds.kinds
    with SequenceBuffer(SequenceLayout(block_of(kind), 200, 30)) as buffer:
        for rollout in rollouts:
            buffer.extend(piece_of(rollout, buffer.layout.block))
        with buffer.snapshot() as snapshot:
            batch = snapshot.sample([np.random.default_rng(0)], 40)
    by_start: dict[bytes, Rollout] = {rollout.observations[0].tobytes(): rollout for rollout in rollouts}
    for i in range(40):
        rollout = by_start[batch.observations[0, i, 0].tobytes()]
        (rows,), last = rollout.kinds, rollout.ends[-1]
        assert batch.lengths[0, i] == last
        assert batch.observations[0, i, : last + 1].tolist() == rows.observations[:, 0].tolist()
        assert batch.acted[0, i, :last].tolist() == rows.acted[:-1, 0].tolist()


def test_agents_of_two_kinds_and_extras_that_no_policy_says_are_refused():
    (segment,), (lions, mice) = segments_of(makes(Crowd, 6), Decides, 2, 3, 1, backend="serial")
    with pytest.raises(
        UsageError, match="a block must have agents of one kind, got lion_0, mouse_0, where the kinds are"
    ):
        piece_of(segment, block_of(lions, (lions.agents[0], mice.agents[0]), 2))
    with pytest.raises(UsageError, match="must be what the policy says, got value, where it says first, chance;"):
        piece_of(segment, block_of(lions, lanes=2, extras={"value": ((), np.float32)}))
