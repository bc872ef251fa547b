"""Recorded episodes in place of worlds: agents learn from what was done before, and do nothing themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.collection.experience import COLUMNS, Experience, Rollout, Segment
from stretto.collection.rollouts import Rollouts, load_rollouts
from stretto.core import AgentKind
from stretto.errors import UsageError
from stretto.policies.ahead import NOT_COUNTED, Counted
from stretto.policies.questions import Weights
from stretto.policies.states import map_state
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array, map_space
from stretto.training.learners.known import FROM_RECORDINGS
from stretto.training.phases import Phases

if TYPE_CHECKING:
    from stretto.training.sets import LearnerSet


_MINARI = "minari:"


class Recorded:
    """The collecting side of a run that reads rollouts: in each pass all of them, in an order drawn for that pass.

    There are `count` readers. Who has come to the end of a rollout takes the next one, so all rows are read equally often.

    Raises:
        UsageError: if the rollouts are not those of this world.
    """

    why_not_resumable: str | None = None

    def __init__(self, rollouts: Sequence[Rollout], kinds: Sequence[AgentKind], count: int, seed: int) -> None:
        if not len(rollouts):
            raise UsageError("agents learn from one rollout or more, got none; collect some")
        self.count, self.kinds = count, kinds
        self._rollouts, self._tree = rollouts, SeedTree(seed).child("recorded")
        self._places = np.zeros(
            (count, 2), np.int64
        )  # of each reader: the number of its rollout in all passes, and the row
        self._places[:, 0] = np.arange(count)
        self._next = count
        self._orders = dict[int, Array]()  # of the passes that readers are in
        self._version = self._rows = 0
        self._poll: Callable[[], object] | None = None
        for kind, mine in zip(kinds, self._kinds(rollouts[0]), strict=True):
            _check(kind, mine)

    def begin(self, learners: LearnerSet, rows: int, phases: Phases, poll: Callable[[], object] | None) -> None:
        """Make ready to read segments of so many rows."""
        self._learners, self._rows, self._poll = learners, rows, poll
        self._read = phases.timed("stepping", self._segment)

    def collect(self) -> Segment:
        """Return the next rows of all readers."""
        if self._poll is not None:
            self._poll()
        return self._read()

    def _segment(self) -> Segment:
        read = [self._reader(reader) for reader in range(self.count)]
        kinds, following = [], []
        for number in range(len(self.kinds)):
            parts = [[part[number] for part in pieces] for pieces, _ in read]
            kinds.append(_beside(parts, self.kinds[number].agents))
            lasts = [last[number] for _, last in read]
            following.append(map_state(lambda *rows: np.stack(rows), *lasts))
        return Segment(tuple(kinds), tuple(following), self._places[:, 0].copy())

    def _reader(self, reader: int) -> tuple[list[list[Experience]], list[Any]]:
        """Return the rows of a reader, in pieces, kind by kind; and what is seen after them."""
        pieces: list[list[Experience]] = []
        left = self._rows
        while left:
            number, row = self._places[reader].tolist()
            kinds = self._kinds(self._numbered(number))
            some = slice(row, min(row + left, len(kinds[0].acted)))
            pieces.append([kind.map(lambda part, some=some: part[some]) for kind in kinds])
            left -= some.stop - some.start
            self._places[reader, 1] = some.stop
            if some.stop == len(kinds[0].acted):
                self._places[reader] = self._next, 0
                self._next += 1
        number, row = self._places[reader].tolist()
        after = [
            map_state(lambda part, row=row: part[row], kind.observations)
            for kind in self._kinds(self._numbered(number))
        ]
        return pieces, after

    def _numbered(self, number: int) -> Rollout:
        """Return a rollout by its number in all passes."""
        passed, place = divmod(number, len(self._rollouts))
        if passed not in self._orders:
            first = int(self._places[:, 0].min()) // len(self._rollouts)
            self._orders = {number: order for number, order in self._orders.items() if number >= first}
            self._orders[passed] = self._tree.child(passed).generator().permutation(len(self._rollouts))
        return self._rollouts[int(self._orders[passed][place])]

    def _kinds(self, rollout: Rollout) -> list[Experience]:
        """Return the experience of each kind of the world, its agents in the world's order."""
        found = []
        for kind in self.kinds:
            there = next((one for one in rollout.kinds if set(kind.agents) <= set(one.agents)), None)
            if there is None:
                names = ", ".join(agent for one in rollout.kinds for agent in one.agents)
                raise _of_another_world(f"its agents are {', '.join(kind.agents)}, got rollouts of {names}")
            columns = [there.agents.index(agent) for agent in kind.agents]
            same = columns == list(range(len(there.agents)))
            found.append(there if same else there.map(lambda part, columns=columns: part[:, columns], kind.agents))
        return found

    @property
    def nodes(self) -> Mapping[str, int]:
        """Where others collect: nowhere."""
        return {}

    @property
    def counted(self) -> Counted:
        """How agents were asked: never."""
        return NOT_COUNTED

    @property
    def version(self) -> int:
        """The version of the weights that were published last."""
        return self._version

    def publish(self, version: int, weights: Weights) -> None:
        """Let policies have weights: those that are saved and evaluated."""
        for number, arrays in weights.items():
            policy: Any = self._learners.learners[number].policy
            policy.load_state(arrays)
        self._version = version

    def state(self) -> dict[str, Any]:
        """Return where the readers are."""
        return {"places": self._places.copy(), "next": self._next}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` has returned, with the same rollouts."""
        self._places[...] = state["places"]
        self._next = int(state["next"])

    def close(self) -> None:
        """There is nothing to let go of."""


def recorded_rollouts(data: Any) -> Rollouts:
    """Return the rollouts that `data` stands for: themselves, their folder, a dataset of Minari, or `minari:ID`."""
    from stretto.collection.minari_datasets import read_dataset  # of use to few

    if isinstance(data, Rollouts):
        return data
    if isinstance(data, str) and data.startswith(_MINARI):
        return read_dataset(data.removeprefix(_MINARI))
    if isinstance(data, (str, os.PathLike)):
        return load_rollouts(data)
    if hasattr(data, "iterate_episodes"):
        return read_dataset(data)
    if isinstance(data, Sequence) and all(isinstance(one, Rollout) for one in data):
        return Rollouts(data)
    raise UsageError(
        f"data must be rollouts, their folder, a dataset of Minari or minari:ID, got {type(data).__name__}; pass what "
        f"stretto.collect returns"
    )


def check_recorded(learner: str, recorded: Rollouts | None, cluster: Any) -> None:
    """Refuse a learner that cannot learn from these rollouts, or from none; and nodes, to which they would have to travel."""
    if recorded is None:
        if learner == "bc":
            raise UsageError("bc learns from recorded rollouts, got none; add data=... (--data DIR)")
        return
    if learner not in FROM_RECORDINGS:
        raise UsageError(
            f"only {', '.join(FROM_RECORDINGS)} learn from recorded rollouts, got {learner}; choose one of them, or leave "
            f"data out"
        )
    if cluster is not None:
        raise UsageError("recorded rollouts are read on this machine, got a cluster beside data; leave one of them out")


def _beside(readers: Sequence[Sequence[Experience]], agents: tuple[Any, ...]) -> Experience:
    """Return the pieces of all readers as one: rows, then readers, then agents."""

    def joined(*parts: Array) -> Array:
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    columns = [
        {
            name: map_state(joined, *(getattr(piece, name) for piece in pieces))
            for name in COLUMNS
            if name != "says"  # what others said of their actions is nothing to learn from
        }
        for pieces in readers
    ]
    return Experience(
        agents,
        **{name: map_state(lambda *parts: np.stack(parts, 1), *(one[name] for one in columns)) for name in columns[0]},
    )


def _check(kind: AgentKind, mine: Experience) -> None:
    """Refuse rollouts whose observations or actions have another shape than the world's."""

    def compare(space: Any, part: Array) -> None:
        if part.shape[2:] != (space.shape or ()) or part.dtype != space.dtype:
            raise _of_another_world(f"it has {space}, got {part.dtype} arrays of shape {part.shape[2:]}")

    for space, values in ((kind.observation_space, mine.observations), (kind.action_space, mine.actions)):
        try:
            map_space(compare, space, values)
        except (KeyError, IndexError, TypeError, AttributeError):
            raise _of_another_world(f"it has {space}, got values of another structure") from None


def _of_another_world(why: str) -> UsageError:
    return UsageError(
        f"recorded rollouts must be of the world that is learned in: {why}; name the world that they were collected in"
    )
