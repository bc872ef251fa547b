"""Training models of Sorrel's in workers: each agent with generators of its own, and again from its state if it is lost."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from stretto.core import AgentId
from stretto.errors import Place, RunsHere, UsageError, user_stacklevel
from stretto.interop.sorrel_state import Changes, Models, Packed
from stretto.seeding import GLOBAL_GENERATORS, PrivateGenerators, SeedTree
from stretto.storage.copies import CopiesLayout, StateCopies, packed_size
from stretto.workers.base import Backend, Port
from stretto.workers.requests import Request, Seat, sender
from stretto.workers.retries import answered
from stretto.workers.supervisor import Supervisor

__calls_user_code__ = True

_MORE_BYTES = 1 << 20
"""Room for what a model may come to have: an optimizer has as much as its parameters, and again, after its first step."""

TrainStep = Callable[[Any], Any]
"""Trains a model once, and returns its loss."""


@dataclass(frozen=True, slots=True)
class Pupil:
    """An agent that trains, with the number of its model among those that are trained together."""

    agent: AgentId
    model: int


@dataclass(frozen=True, slots=True)
class Train:
    """Asks for a training of some models, one after the other, whose state lies in shared memory or is sent."""

    group: int
    version: int
    epoch: int
    pupils: tuple[Pupil, ...]
    generators: tuple[dict[str, Any], ...]
    state: Packed | None


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training gave: losses, what it has changed, and where the generators are now."""

    losses: list[Any]
    generators: list[dict[str, Any]]
    changes: Changes | None


class TrainingService:
    """Trains in a worker: what it keeps there from one training to the next is nothing."""

    def __init__(
        self, train: TrainStep, layouts: Mapping[int, CopiesLayout], modules: Sequence[str], port: Port
    ) -> None:
        for name in modules:  # before somebody waits for them
            with contextlib.suppress(ImportError):  # who needs it says so
                import_module(name)
        self._train, self._layouts, self._port = train, layouts, port
        self._copies: dict[int, StateCopies] = {}

    def handle(self, message: Any) -> object:
        return self._trained(message) if isinstance(message, Train) else None

    def _trained(self, message: Train) -> Trained:
        if message.group not in self._copies:
            self._copies[message.group] = StateCopies(self._layouts[message.group], self._port.arena)
        copies, doing = self._copies[message.group], doing_of(message.epoch)
        packed = message.state or copies.read(message.version)["packed"]

        def train(agent: AgentId, model: Any) -> Any:
            self._port.place = lambda: Place(doing, worker=self._port.index, agent=agent)
            return self._train(model)

        trained = train_copy(packed, message.pupils, message.generators, train)
        kept = copies.write(message.version + 1, {"changes": trained.changes})
        return replace(trained, changes=None) if kept else trained

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        pass


def train_copy(
    packed: Packed,
    pupils: Sequence[Pupil],
    generators: Sequence[dict[str, Any]],
    train: Callable[[AgentId, Any], Any],
) -> Trained:
    """Train a copy of models, and return what that gave."""
    models = Models.unpack(packed)
    watched, losses, after = models.watched(), [], []
    for pupil, state in zip(pupils, generators, strict=True):
        own = learning_generators(0, pupil.agent)
        own.set_state(state)
        losses.append(own.run(train, pupil.agent, models.models[pupil.model]))
        after.append(own.state())
    return Trained(losses, after, watched.changes())


def doing_of(epoch: int) -> str:
    """Say what a training is, for messages."""
    return f"training after epoch {epoch}"


def learning_generators(seed: int, agent: AgentId) -> PrivateGenerators:
    """Return the generators from which the training of an agent draws."""
    return PrivateGenerators(SeedTree(seed).child("sorrel", "learn", agent), 0, GLOBAL_GENERATORS)


class Group:
    """Agents whose models share something, or one agent alone: what is trained by one worker, in their order."""

    def __init__(self, number: int, agents: Mapping[AgentId, Any]) -> None:
        models = list({id(model): model for model in agents.values()}.values())
        order = {id(model): place for place, model in enumerate(models)}
        self.number, self.names = number, ", ".join(agents)
        self.pupils = tuple(Pupil(agent, order[id(model)]) for agent, model in agents.items())
        self.models, self.version = models, 0
        self.began: Models | None = None
        self.sent: Packed | None = None  # what a training began with, where that has no room in shared memory
        self.here = ""  # why it cannot be trained elsewhere


def groups_of(agents: Mapping[AgentId, Any]) -> list[Group]:
    """Part agents into groups that share no model, array or tensor."""
    found: list[tuple[set[int], dict[AgentId, Any]]] = []
    reasons: dict[AgentId, str] = {}
    for agent, model in agents.items():
        own = Models([model])
        try:
            own.pack()
        except UsageError as error:
            reasons[agent] = str(error)
        parts, members = own.leaves() | {id(model)}, {agent: model}
        for other in [one for one in found if one[0] & parts]:
            found.remove(other)
            parts, members = other[0] | parts, {**other[1], **members}
        found.append((parts, members))
    order = list(agents)
    found.sort(key=lambda one: order.index(next(iter(one[1]))))
    groups = [Group(number, members) for number, (_, members) in enumerate(found)]
    for group in groups:
        group.here = next((reasons[pupil.agent] for pupil in group.pupils if pupil.agent in reasons), "")
    return groups


class Trainer:
    """Trains agents in `workers` workers; one of them is the caller, unless it `overlaps` with what the caller does.

    A worker that dies, or takes longer than `limit_seconds`, is replaced, and its agents are trained again from their state.
    """

    def __init__(
        self,
        agents: Mapping[AgentId, Any],
        train: TrainStep,
        seed: int,
        backend: Backend,
        workers: int,
        limit_seconds: float | None,
        overlaps: bool,
    ) -> None:
        self._train, self._limit, self.overlaps = train, limit_seconds, overlaps
        self._generators = {agent: learning_generators(seed, agent) for agent in agents}
        self._order = list(agents)
        self.groups = groups_of(agents)
        self.restarts = 0
        elsewhere = [group for group in self.groups if not group.here] if backend.start is not None else []
        for group in self.groups if backend.start is not None else ():
            if group.here:
                said = f"{group.names} trains in the caller's process: {group.here}"
                warnings.warn(RunsHere(said), stacklevel=user_stacklevel())
        helpers = min(max(0, workers - (not overlaps)), len(elsewhere))
        self._supervisor = Supervisor(backend)
        layouts = self._lay_out(elsewhere if helpers else [])
        modules = sorted({type(model).__module__ for model in agents.values()} - {"__main__"})
        for _ in range(helpers):
            self._supervisor.add_seat(partial(TrainingService, train, layouts, modules))
        self._asked: dict[int, Request] = {}
        self._done: dict[int, Trained] = {}  # in the caller's process, and not taken over yet
        self._epoch, self._losses = 0, dict[AgentId, Any]()
        for seat in self._supervisor.seats:
            self._supervisor.start(seat)

    def _lay_out(self, groups: Sequence[Group]) -> dict[int, CopiesLayout]:
        layouts, end = {}, 0
        for group in groups:
            size = packed_size({"packed": Models(group.models).pack()})
            layouts[group.number] = CopiesLayout(end, -(-(2 * size + _MORE_BYTES) // 4096) * 4096)
            end = -(-layouts[group.number].fields[1] // 4096) * 4096
        arena = self._supervisor.arena
        if layouts:
            arena.allocate(end, "the models of all agents", "keep fewer experiences, or use fewer agents")
        self._copies = {number: StateCopies.new(layout, arena) for number, layout in layouts.items()}
        return layouts

    # ---- a training ----

    def begin(self, epoch: int) -> None:
        """Let every agent train once with what it remembers now; `finish` waits for it."""
        self._epoch, self._losses = epoch, {}
        # The caller takes the first share: it need not be told of it.
        shares = [*(() if self.overlaps else (None,)), *self._supervisor.seats] or [None]
        here = []
        for place, group in enumerate(self.groups):
            seat = shares[place % len(shares)]
            if seat is None or group.number not in self._copies:
                here.append(group)
            else:
                self._begin(group)
                self._send(group, seat)
        for group in here:
            if self.overlaps:
                self._train_a_copy(group)
            else:
                self._train_here(group)

    def _begin(self, group: Group) -> None:
        """Keep what a training begins with: in shared memory, if there is room."""
        group.began = Models(group.models)
        packed = group.began.pack()
        group.version += 2
        copies = self._copies.get(group.number)
        kept = copies is not None and copies.write(group.version, {"packed": packed})
        group.sent = None if kept else Packed(packed.texts, tuple(array.copy() for array in packed.arrays))

    def _train_a_copy(self, group: Group) -> None:
        if group.here:
            raise UsageError(f"async_learning needs models that can be copied; {group.here}; set async_learning: false")
        self._begin(group)

        given = self._begun(group), group.pupils, self._states(group)
        self._done[group.number] = train_copy(*given, self._train_in_place)

    def _states(self, group: Group) -> tuple[dict[str, Any], ...]:
        return tuple(self._generators[pupil.agent].state() for pupil in group.pupils)

    def _send(self, group: Group, seat: Seat) -> None:
        """Let a group be trained from the state that was packed."""
        message = Train(group.number, group.version, self._epoch, group.pupils, self._states(group), group.sent)
        doing = f"{doing_of(self._epoch)} ({group.names})"
        self._asked[group.number] = self._supervisor.ask(seat, sender(message), doing, self._limit)

    def _train_here(self, group: Group) -> None:
        for pupil in group.pupils:
            model = group.models[pupil.model]
            self._losses[pupil.agent] = self._generators[pupil.agent].run(self._train_in_place, pupil.agent, model)
            for parameter in getattr(model, "parameters", list)():
                parameter.grad = None  # as elsewhere, a training begins with none

    def _train_in_place(self, agent: AgentId, model: Any) -> Any:
        try:
            return self._train(model)
        except Exception as error:
            error.add_note(str(Place(doing_of(self._epoch), agent=agent)))
            raise

    def finish(self) -> list[Any]:
        """Wait for the training that was begun, take over what it has learned, and return the losses of the agents."""
        for number, request in answered(self._supervisor, self._asked, self._again):
            if request.error is not None:
                raise request.error
            del self._asked[number]
            self._take(self.groups[number], request.value)
        for number, trained in self._done.items():
            self._take(self.groups[number], trained)
        self._done.clear()
        losses, self._losses = self._losses, {}
        return [losses[agent] for agent in self._order if agent in losses]

    def _again(self, number: int) -> None:
        self.restarts += 1
        self._send(self.groups[number], self._asked[number].seat)

    def _begun(self, group: Group) -> Packed:
        """Return what a training under way began with."""
        found: Packed = group.sent or self._copies[group.number].read(group.version)["packed"]
        return found

    def _take(self, group: Group, trained: Trained) -> None:
        changes: Changes = trained.changes or self._copies[group.number].read(group.version + 1)["changes"]
        if self.overlaps and any(number > 0 for number in changes.texts):
            raise UsageError(
                f"async_learning needs a train_step that leaves memory as it is, and that of {group.names} changes it; "
                f"set async_learning: false"
            )
        assert group.began is not None
        group.began.take(changes, self._begun(group) if self.overlaps else None)
        group.began = None
        for pupil, loss, state in zip(group.pupils, trained.losses, trained.generators, strict=True):
            self._generators[pupil.agent].set_state(state)
            self._losses[pupil.agent] = loss

    @property
    def pids(self) -> list[int]:
        """The processes that train now."""
        return self._supervisor.pids

    def close(self) -> None:
        """End the workers; may be called twice. What was begun and not waited for is given up."""
        for seat in self._supervisor.seats:
            if seat.requests:
                self._supervisor.discard(seat)
                seat.requests.clear()
        self._supervisor.close()
