"""Replay, compared with a plain list of what happened."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import UsageError
from stretto.storage import Block, Patience, Piece, TransitionBuffer, TransitionLayout, within_bytes
from tests.storage.experience import World, block_of, contents, observed, streams

DISCOUNT = 0.9


class Model:
    """What a buffer should show, worked out row by row from all that ever happened."""

    def __init__(self, world, layout, end):
        self.world, self.layout, self.end = world, layout, end

    def outcome(self, steps, row):
        """What came of a decision: the rewards, and the row and kind of what followed; nothing if it is not known."""
        total = np.float32(0)
        for i in range(row, self.end):
            total += steps[i].reward
            if steps[i].ended:
                return total, "end", i
            if i + 1 < self.end and steps[i + 1].acted:
                return total, "next", i + 1
        return None

    def frames(self, steps, row, count):
        found = []
        for i in range(row, -1, -1):
            if i < row and steps[i].ended:
                break
            if steps[i].acted:
                found.append(steps[i].seen)
        found = found[:count]
        return [found[-1]] * (count - len(found)) + found[::-1]

    def longest_gap(self, agent):
        gaps = [1]
        for lane in range(self.world.block.lanes):
            steps = self.world.steps[lane, agent]
            came = {row: self.outcome(steps, row) for row in range(self.end) if steps[row].acted}
            gaps += [what[2] - row for row, what in came.items() if what is not None and what[1] == "next"]
        return max(gaps)

    def rows(self, agent):
        """The (row, lane) of all transitions that can be drawn, in order."""
        oldest = max(0, self.end - self.layout.ring.capacity)
        first = oldest + (self.layout.stack - 1) * self.longest_gap(agent) if oldest else 0
        every = ((row, lane) for row in range(first, self.end) for lane in range(self.world.block.lanes))
        steps = self.world.steps
        return [
            (row, lane)
            for row, lane in every
            if steps[lane, agent][row].acted and self.outcome(steps[lane, agent], row) is not None
        ]

    def transition(self, agent, row, lane, n_steps):
        steps, stack = self.world.steps[lane, agent], self.layout.stack
        start, total, left = row, 0.0, 1.0
        for _ in range(n_steps):
            came = self.outcome(steps, row) if row < self.end else None
            if came is None:
                break
            reward, kind, where = came
            total, left = total + left * reward, left * DISCOUNT
            last = row, kind, where
            row = where
            if kind == "end":
                break
        row, kind, where = last
        if kind == "next":
            following = self.frames(steps, where, stack)
        else:
            final = steps[where + 1].seen if where + 1 < self.end else int(self.world.pending[lane, agent])
            following = [*self.frames(steps, row, stack)[1:], final]
        terminated = kind == "end" and steps[where].terminated
        return self.frames(steps, start, stack), total, 0.0 if terminated else left, following


def check(batch, agent, i, expected, layout, step):
    frames, reward, discount, following = expected
    for observations, numbers in ((batch.observations, frames), (batch.next_observations, following)):
        wanted = observed(numbers if layout.stack > 1 else numbers[0])
        assert observations["number"][0][agent, i].tolist() == wanted["number"][0].tolist()
        assert observations["image"][agent, i].tolist() == wanted["image"].tolist()
    assert batch.actions[agent, i].tolist() == list(step.action)
    assert batch.extras["hidden"][agent, i].tolist() == [step.seen] * 3
    assert batch.rewards[agent, i] == pytest.approx(reward, rel=1e-6, abs=1e-6)
    assert batch.discounts[agent, i] == np.float32(discount)


def check_all(snapshot, model, n_steps):
    """Compare every transition of a snapshot with the model, and what is drawn with what may be."""
    taken, agents = snapshot.range, len(model.world.block.agents)
    wanted = [model.rows(agent) for agent in range(agents)]
    assert taken.counts == [len(rows) for rows in wanted]
    numbers = [
        [n for n in range(first, last) if n not in left_out]
        for first, last, left_out in zip(taken.first, taken.last, taken.unfinished, strict=True)
    ]
    width = max(map(len, numbers))
    if not width:
        return
    grid = np.array([mine + [mine[0] if mine else -1] * (width - len(mine)) for mine in numbers])
    batch = snapshot.transitions(grid, n_steps=n_steps, discount=DISCOUNT)
    for agent, rows in enumerate(wanted):
        assert batch.mask[agent] == bool(rows)
        for i, (row, lane) in enumerate(rows):
            step = model.world.steps[lane, agent][row]
            check(batch, agent, i, model.transition(agent, row, lane, n_steps), model.layout, step)
    drawn = snapshot.sample(streams(agents), 8 * width, n_steps=n_steps, discount=DISCOUNT)
    for agent, mine in enumerate(numbers):
        assert set(drawn.numbers[agent].tolist()) <= set(mine or [-1])
        if not mine:
            assert not drawn.rewards[agent].any()
            assert not drawn.observations["number"][0][agent].any()


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    block=st.builds(block_of, st.integers(1, 3), st.integers(1, 3)),
    always=st.booleans(),
    sizes=st.tuples(st.integers(1, 40), st.just(5), st.integers(1, 3)),
    n_steps=st.integers(1, 4),
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=12),
)
def test_every_transition_is_what_a_plain_list_says(seed, block, always, sizes, n_steps, counts):
    world = World(block, np.random.default_rng(seed), always=always)
    layout = TransitionLayout(block, *sizes)
    with TransitionBuffer(layout) as buffer:
        for i, count in enumerate(counts):
            buffer.extend(world.piece(count))
            if i % 3 == 0 or i == len(counts) - 1:
                with buffer.snapshot() as snapshot:
                    check_all(snapshot, Model(world, layout, sum(counts[: i + 1])), n_steps)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    always=st.booleans(),
    stack=st.integers(1, 3),
    count=st.integers(1, 5),
    end_chance=st.sampled_from([0.1, 1.0]),
)
def test_a_snapshot_stays_as_it_was_while_the_next_piece_is_written(seed, always, stack, count, end_chance):
    world = World(block_of(2, 2), np.random.default_rng(seed), end_chance, always)
    layout = TransitionLayout(world.block, 24, 5, stack)
    with TransitionBuffer(layout, patience=Patience(0.0)) as buffer:
        for _ in range(6):
            buffer.extend(world.piece(count))
        with buffer.snapshot() as snapshot:
            before = snapshot.sample(streams(2), 50, n_steps=3)
            buffer.extend(world.piece(5))
            after = snapshot.sample(streams(2), 50, n_steps=3)
    assert contents(before) == contents(after)


def agent_alone(piece, agent, block):
    """The part of a piece that belongs to one agent of its block."""

    def pick(value, index):
        return {"image": value["image"][index], "number": (value["number"][0][index],)}

    grid = np.s_[:, :, agent : agent + 1]
    return Piece(
        pick(piece.observations, grid),
        piece.actions[grid],
        piece.acted[grid],
        piece.rewards[grid],
        piece.terminated[grid],
        piece.truncated[grid],
        pick(piece.next_observations, np.s_[:, agent : agent + 1]),
        {"hidden": piece.extras["hidden"][grid]},
    )


@pytest.mark.parametrize("always", [True, False])
def test_an_agent_draws_the_same_alone_as_in_a_block_whatever_the_others_do(always):
    world = World(block_of(3, 2), np.random.default_rng(5), always=always)
    pieces = [world.piece(4) for _ in range(20)]
    with (
        TransitionBuffer(TransitionLayout(world.block, 50, 4, 2)) as together,
        TransitionBuffer(TransitionLayout(block_of(1, 2), 50, 4, 2)) as alone,
    ):
        for piece in pieces:
            together.extend(piece)
            alone.extend(agent_alone(piece, 1, world.block))
        with together.snapshot() as many, alone.snapshot() as one:
            all_drawn = many.sample(streams(3), 64, n_steps=2)
            mine = one.sample(streams(3)[1:2], 64, n_steps=2)
    assert all_drawn.numbers[1].tolist() == mine.numbers[0].tolist()
    assert all_drawn.rewards[1].tobytes() == mine.rewards[0].tobytes()
    assert all_drawn.observations["image"][1].tobytes() == mine.observations["image"][0].tobytes()
    assert all_drawn.next_observations["image"][1].tobytes() == mine.next_observations["image"][0].tobytes()


@pytest.mark.parametrize("always", [True, False])
def test_how_experience_is_cut_into_pieces_changes_nothing(always):
    def content(cuts):
        world = World(block_of(2, 2), np.random.default_rng(3), always=always)
        with TransitionBuffer(TransitionLayout(world.block, 60, 12, 3)) as buffer:
            for count in cuts:
                buffer.extend(world.piece(count))
            with buffer.snapshot() as snapshot:
                return contents(snapshot.sample(streams(2), 100, n_steps=3))

    assert content([12] * 4) == content([1] * 48) == content([5, 7, 11, 1, 12, 12])


def test_all_transitions_are_drawn_equally_often():
    world = World(block_of(1, 2), np.random.default_rng(1), always=False)
    with TransitionBuffer(TransitionLayout(world.block, 40, 5)) as buffer:
        for _ in range(12):
            buffer.extend(world.piece(5))
        with buffer.snapshot() as snapshot:
            (count,) = snapshot.range.counts
            drawn = snapshot.sample(streams(1), 1000 * count).numbers
    _, often = np.unique(drawn, return_counts=True)
    assert len(often) == count
    assert (abs(often - 1000) < 6 * 1000**0.5).all()


# --- what is refused ------------------------------------------------------------------------------------------


def changed(piece, **parts):
    return Piece(**{name: getattr(piece, name) for name in Piece.__slots__} | parts)


def test_a_piece_that_does_not_fit_is_refused_and_nothing_is_written():
    world = World(block_of(2, 2), np.random.default_rng(0), end_chance=1.0)
    piece = world.piece(3)
    wrong = {
        r"rewards of a piece must be float32 of shape \(3, 2, 2\), got float32 of \(3, 2\)": {
            "rewards": piece.rewards[:, 0]
        },
        r"observation\['image'\] of a piece must be uint8": {
            "observations": piece.observations | {"image": piece.observations["image"].astype(np.int64)}
        },
        "the row after an agent's end must hold its last observation": {"acted": np.ones((3, 2, 2), bool)},
        "a piece that nothing follows must end with a row of last observations": {"next_observations": None},
        r"must have the extras of its block, \['hidden'\], got \[\]": {"extras": {}},
    }
    with TransitionBuffer(TransitionLayout(world.block, 40, 3)) as buffer:
        for message, parts in wrong.items():
            with pytest.raises(UsageError, match=message):
                buffer.extend(changed(piece, **parts))
        with pytest.raises(UsageError, match="must have 1 to 3 rows, got 4; make the buffer for longer ones"):
            buffer.extend(world.piece(4))
        with buffer.snapshot() as snapshot:
            assert snapshot.range.counts == [0, 0]
            with pytest.raises(UsageError, match="every agent must have its stream, got 1 for 2"):
                snapshot.sample(streams(1), 4)


def test_a_piece_that_is_not_what_came_next_is_refused():
    world = World(block_of(1, 2), np.random.default_rng(0), end_chance=0.0)
    with TransitionBuffer(TransitionLayout(world.block, 40, 3)) as buffer:
        buffer.extend(world.piece(3))
        world.piece(1)
        with pytest.raises(UsageError, match=r"must begin with the next_observations .* as truncated"):
            buffer.extend(world.piece(3))


def test_values_without_a_fixed_size_are_refused_by_name():
    from gymnasium import spaces

    space = spaces.Dict({"said": spaces.Text(5), "x": spaces.Discrete(2)})
    with pytest.raises(UsageError, match=r"fixed size can be stored, got Text.* in \['said'\]; turn it into a Box"):
        Block(("a",), space, spaces.Discrete(2))


# --- size -----------------------------------------------------------------------------------------------------


def test_a_size_in_bytes_is_used_up_and_never_exceeded():
    block = block_of(3, 4)
    layout = within_bytes(1_000_000, lambda steps: TransitionLayout(block, steps, 16))
    assert layout.ring.nbytes <= 1_000_000
    assert TransitionLayout(block, layout.steps + 1, 16).ring.nbytes > 1_000_000
    assert layout.ring.nbytes > 990_000
    with pytest.raises(UsageError, match=r"must have room for a step and for the longest piece, \d+ bytes, got 100;"):
        within_bytes(100, lambda steps: TransitionLayout(block, steps, 16))
