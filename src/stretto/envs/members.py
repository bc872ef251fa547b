"""Members of a crew, and what is asked of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stretto.envs.group_worker import GroupFactory
from stretto.envs.info_buffer import InfoBuffer
from stretto.envs.messages import Extras, Restored, SlotPlan, Step
from stretto.errors import Place, StrettoError
from stretto.spaces import Array
from stretto.workers.base import Output, Worker
from stretto.workers.control import INFOS

Issue = Callable[[Worker], int]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a worker may be without a sign of progress, in seconds (`None`: for ever), and how often it may die."""

    start: float | None
    reset: float | None
    step: float | None
    on_crash: str
    max_restarts: int


@dataclass(slots=True)
class Request:
    """Something asked of a member; `issue` asks again if the worker has to be replaced.

    It may take `timeout` seconds without a sign of progress; where there is a time `until` which it is waited for, no
    progress makes that later.
    """

    member: Member
    issue: Issue
    doing: str
    timeout: float | None
    on_value: Callable[[Any], None] | None = None
    number: int = 0
    finished: bool = False
    internal: bool = False
    hung: bool = False
    until: float | None = None
    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class Member:
    """A share of the slots, and the worker that has it now.

    `values` and `outputs` came by mail, and wait until their request counts as answered. On the `board`, which has the
    `room` of these slots, a worker that shares memory lays the infos of a step. Where there is no worker, the
    next request brings a new one (which restores the slots, unless `lost_because` has a reason); if there is an `error`,
    that is what requests get, and only `Crew.recover` brings a new worker.
    """

    index: int
    first: int
    count: int
    factory: GroupFactory
    worker: Worker | None = None
    inline: bool = False
    requests: deque[Request] = field(default_factory=deque)
    values: dict[int, Any] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    room: Array | None = None
    board: InfoBuffer | None = None
    built: bool = False
    error: StrettoError | None = None
    lost_because: str | None = None
    restarts: int = 0
    seen: tuple[int, int, int] = (0, 0, 0)
    since: float = 0.0

    @property
    def slots(self) -> range:
        return range(self.first, self.first + self.count)

    def clear_board(self) -> None:
        """Know of no kind of infos yet, as the worker that has just been started."""
        self.board = None if self.room is None or self.inline else InfoBuffer(self.first, self.room)

    def take_value(self, number: int) -> Any:
        """Return what request `number` was answered with: what came by mail, and what lies on the board."""
        value = self.values.pop(number, None)
        if self.board is not None and self.worker is not None and (value is None or isinstance(value, Extras)):
            table = self.board.table(self.worker.words[INFOS], number)
            if table is not None:
                value = value or Extras()
                value.infos = table
        return value


class Memory(Protocol):
    """What the crew has to know to replace a worker."""

    def plans(self, slots: Iterable[int], lost_because: str | None) -> list[SlotPlan]:
        """Say how to bring slots to where they were; not at all, but for the reason given, if there is one."""

    def restored(self, result: Restored) -> None:
        """Take note of how that went."""

    def restarted(self) -> None:
        """Take note of a worker that was replaced."""

    def place(self, slot: int, doing: str, worker: int) -> Place:
        """Say where a slot is."""


def not_again(worker: Worker) -> int:
    """Stand for a request that is never made again."""
    raise AssertionError(f"worker {worker.index} starts once")


def sender(message: object) -> Issue:
    """Return how to ask with a message. Actions are plain arrays; all else may hold what only the caller's main knows."""
    by_value = not isinstance(message, Step)
    return lambda worker: worker.send(message, by_value=by_value)


def current_limit(member: Member, of_a_step: float | None) -> float | None:
    """Return the limit of what a member does now; asked from another thread, so its requests may be gone meanwhile."""
    try:
        return member.requests[0].timeout
    except IndexError:
        return of_a_step


def count_finished(requests: Sequence[Request]) -> int:
    """Return how many requests are answered."""
    count = 0  # a loop, not a sum: this stands in every step
    for request in requests:
        if request.finished:
            count += 1
    return count


def first_slot(request: Request) -> int:
    """Return the first slot of whom a request is made."""
    return request.member.first
