"""A share at work: worlds and policies in a worker that plays segments of some of a collection's slots by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stretto.collection.collector import Collector, Trials, why_not_resumable
from stretto.collection.experience import Segment
from stretto.collection.share_messages import Act, FirstRows, Gather, Gathered, GoOn, told_slots
from stretto.collection.turn_stage import Turns
from stretto.collection.worlds import BlockWorlds
from stretto.core import SEQUENTIAL, AgentId, BlockAnswer, BlockPolicy
from stretto.envs.make import make_vec
from stretto.errors import Place
from stretto.policies.block_runner import BlockRunner
from stretto.policies.questions import Block
from stretto.policies.states import map_state
from stretto.run_trace import TracedService, traced_runner, traced_worlds
from stretto.workers.base import Port
from stretto.workers.inline import InlineWorker
from stretto.workers.output import held_back

__calls_user_code__ = True


@dataclass(frozen=True)
class SharePlayer:
    """Makes what plays segments of `rows` rows, in whichever process, of some of the `slots` of a collection.

    `policies` makes the policies that agents follow, by number, in so many parts for each block as `parts` says. A call of
    one has `act_rows` rows for episodes. `check` returns what a machine gives that learns from a segment.
    """

    make: Callable[[], Any]
    policies: Callable[[], Sequence[BlockPolicy]]
    parts: Sequence[int]
    followed: Mapping[AgentId, int]
    trials: Trials
    slots: int
    rows: int
    act_rows: int
    turns: str = SEQUENTIAL
    global_rng: str = "auto"
    checks: str = "first"
    check: Callable[[Segment], str] = lambda _: ""

    def __call__(self, port: Port) -> TracedService:
        return TracedService(port, _ShareService(port, self), str)


class _Playing:
    """A share that is played, with worlds of its own."""

    def __init__(
        self, player: SharePlayer, policies: Sequence[BlockPolicy], share: range, beat: Callable[[], None]
    ) -> None:
        own: dict[str, Any] = {"backend": "serial", "copy": False, "vectorized": False, "first_slot": share.start}
        envs = make_vec(player.make, len(share), global_rng=player.global_rng, checks=player.checks, **own)
        runner = _Beating(policies, player.act_rows, parts=player.parts)
        runner.beat = beat
        worlds = BlockWorlds(envs)
        self._seat = worlds.envs.engine.supervisor.seats[0]
        self.why_not_resumable = why_not_resumable(worlds, runner)
        self._collector = Collector(traced_worlds(worlds), traced_runner(runner), player.followed, Turns(player.turns))
        how: dict[str, Any] = {"first": share.start, "among": player.slots}
        how["resumable"] = self.why_not_resumable is None
        self.segments = self._collector.segments(player.rows, player.trials, **how)

    def gather(self) -> Gathered:
        """Play the next segment."""
        segment = next(self.segments)
        return Gathered(
            segment, self.segments.state() if self.why_not_resumable is None else None, self.segments.counted
        )

    def place(self, worker: int) -> Place:
        """Say which slot is at what."""
        inner = self._seat.worker
        found = inner.port.place() if isinstance(inner, InlineWorker) else Place("collecting")
        return replace(found, worker=worker)

    def close(self) -> None:
        """Close the worlds."""
        self._collector.close()


class _Beating(BlockRunner):
    """Shows a sign of life whenever agents are asked."""

    beat: Callable[[], None]

    def act_block(self, block: Block, limit_seconds: float | None = None) -> BlockAnswer:
        self.beat()
        return super().act_block(block, limit_seconds)


class _ShareService:
    """Plays shares in a worker."""

    def __init__(self, port: Port, player: SharePlayer) -> None:
        self._port, self._player = port, player
        self._policies = player.policies()
        self._playing: dict[range, _Playing] = {}

    def handle(self, message: Any) -> object:
        match message:
            case Act(_, weights):
                for number, arrays in weights.items():
                    policy: Any = self._policies[number]
                    policy.load_state(arrays)
            case GoOn(share, state):
                return self._go_on(share, state)
            case Gather(share):
                playing = self._playing[share]
                self._port.place = lambda: playing.place(self._port.index)
                return playing.gather()
            case FirstRows():
                return self._first_rows()
            case _:
                raise AssertionError(f"no such message: {message!r}")
        return None

    def _go_on(self, share: range, state: Mapping[str, Any] | None) -> str | None:
        """Make the worlds of a share, and bring them to where others were; say why that could not be done, if so."""
        self._port.place = lambda: Place(f"beginning {told_slots(share)}", worker=self._port.index)
        if share in self._playing:
            self._playing.pop(share).close()
        self._playing[share] = playing = self._begun(share)
        if state is not None:
            self._port.muted = True  # what is done again was said before
            try:
                playing.segments.restore(state)
            finally:
                self._port.muted = False
        return playing.why_not_resumable

    def _begun(self, share: range) -> _Playing:
        return _Playing(self._player, self._policies, share, self._port.beat)

    def _first_rows(self) -> str:
        with held_back(self._port), closing(self._begun(range(1))) as playing:  # it is said again where it counts
            segment = playing.gather().segment
        return f"{_digest(segment)} {self._player.check(segment)}"

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        for playing in self._playing.values():
            playing.close()


def _digest(segment: Segment) -> str:
    found = hashlib.sha256()

    def add(array: Any) -> Any:
        found.update(np.ascontiguousarray(array).tobytes())
        return array

    for kind in segment.kinds:
        kind.map(add)
    map_state(add, segment.following)
    return found.hexdigest()
