"""Cluster: a Ray cluster that programs run on: its nodes, its budget, and the actors that carry workers there."""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import cloudpickle

from stretto import hash_seed
from stretto.budget import CpuBudget
from stretto.errors import ClosedError, NodeLeftOut, ResourceError, UsageError, user_stacklevel
from stretto.identity.owners import is_users
from stretto.workers.base import Factory
from stretto.workers.lent import Lent
from stretto.workers.process import pickled_start
from stretto.workers.ray_start import connect, ray_or_remedy, restore
from stretto.workers.relay import Relay
from stretto.workers.surroundings import PULSE_SECONDS

_SHARED_BYTES, _MOST_SHARED = 100_000, 16
"""What is longer goes to each node once, through the object store; and how many such are remembered."""

_MOST_SHARED_BYTES = 256 << 20
"""How many bytes of them are, unless one alone is longer: segments that learners get are sent only once."""

_PULSES_A_SECOND = 100
"""How many signs of life the caller hears at most from all workers together: each takes about half a millisecond."""

_NODE = "ray.io/node-id"
"""The label that Ray gives each node."""

_DOUBT_SECONDS = 30.0  # for which a node counts as lost where an actor was: Ray notices late that one has died

_PLACED_SECONDS = 300.0
"""How long an actor may take to have a node, where the caller has to wait for that."""


@dataclass(frozen=True, slots=True)
class Work:
    """What goes on on a cluster: on how many nodes, in how many workers, and how many tasks these have."""

    nodes: int
    workers: int
    tasks: int

    def __str__(self) -> str:
        parts = (self.nodes, "node"), (self.workers, "worker"), (self.tasks, "task")
        return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in parts)


class Cluster:
    """A connection to a Ray cluster: see `stretto.cluster`. Use as a context manager."""

    def __init__(
        self,
        address: str = "auto",
        *,
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        cpus: int | None = None,
    ) -> None:
        self._ray = ray = ray_or_remedy()
        if not num_cpus > 0 or num_gpus < 0:
            raise UsageError(f"num_cpus must be more than 0, and num_gpus 0 or more, got {num_cpus} and {num_gpus}")
        self.num_cpus, self.num_gpus, self.resources = num_cpus, num_gpus, dict(resources or {})
        self._runtime_env = dict(runtime_env or {})
        self._owned = not ray.is_initialized()
        self._closed = False
        self._environment: dict[str, str | None] = {}
        if self._owned:  # else somebody has connected this program, and will disconnect it
            self._environment = connect(ray, address, cpus)
        self._relay = ray.remote(Relay)
        self._lives = itertools.count(1)
        self._parked: list[Lent] = []
        self._lent: list[Lent] = []
        self._shared: dict[int, tuple[bytes, Any]] = {}
        self._starts: dict[int, tuple[Factory, bytes]] = {}
        self._names: dict[str, str] = {}
        self._brought: dict[str, ModuleType | None] = {}  # modules of the user's; those that travel by value are there
        self.left_out: dict[str, str] = {}
        self._doubted: dict[str, float] = {}  # nodes on which an actor was lost, and when
        self.alike: set[str] | None = None  # the nodes that were seen to give the same numbers, once they were compared
        self.clocks: dict[str, int] = {}
        try:
            self.budget = CpuBudget(self._places())
        except BaseException:
            self.close()
            raise
        _open.append(self)

    # ---- nodes ----

    def nodes(self) -> dict[str, Mapping[str, float]]:
        """Return the nodes that live now by name, and what each has."""
        return {self.name_of(str(node["NodeID"])): node["Resources"] for node in self._living()}

    def _living(self) -> list[Any]:
        """Return the nodes that live as far as Ray knows; those in doubt count if there are no others."""
        living = [one for one in self._ray.nodes() if one["Alive"] and one["NodeID"] not in self.left_out]
        since = time.monotonic() - _DOUBT_SECONDS
        sure = [one for one in living if self._doubted.get(str(one["NodeID"]), since) <= since]
        return sure if any(self._room(one["Resources"]) for one in sure) else living

    def name_of(self, node_id: str) -> str:
        """Return what a node is called: its address, with the beginning of its id where several have that address."""
        if node_id not in self._names:
            addresses = {str(one["NodeID"]): str(one["NodeManagerAddress"]) for one in self._ray.nodes()}
            address = addresses.get(node_id, "unknown")
            alone = list(addresses.values()).count(address) == 1
            self._names[node_id] = address if alone else f"{address}/{node_id[:6]}"
        return self._names[node_id]

    def _room(self, resources: Mapping[str, float]) -> int:
        """Return how many workers a node can have."""
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return min(int(resources.get(name, 0.0) / amount) for name, amount in wanted.items() if amount)

    def _places(self) -> int:
        if rooms := self.rooms():
            return sum(rooms.values())
        wanted = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, **self.resources}
        asked = ", ".join(f"{name}={amount:g}" for name, amount in wanted.items() if amount)
        there = "; ".join(f"{name}: {_told(resources)}" for name, resources in self.nodes().items())
        raise ResourceError(f"a worker needs {asked}, and no node has that ({there}); ask for less, or add a node")

    def count_again(self) -> None:
        """Let the budget be that of the nodes that are there now: some may have joined, and others been lost."""
        self._check_open()
        self.budget.total = self._places()

    def why_not_placed(self) -> str:
        """Say why an actor may have no node."""
        free = _told(self._ray.available_resources())
        return f"no node of the cluster has room for it; {free} are free now on {len(self.nodes())} nodes"

    def rooms(self) -> dict[str, int]:
        """Return how many workers each node can have, by Ray's name of it; those that can have none are left out."""
        rooms = {str(node["NodeID"]): self._room(node["Resources"]) for node in self._living()}
        return {node: room for node, room in rooms.items() if room}

    def has_room(self) -> bool:
        """Whether one more worker would have a place now, as far as this program's own ones are concerned."""
        rooms = self.rooms()
        return sum(room for node, room in rooms.items() if self.alike is None or node in self.alike) > len(self._lent)

    def leave_out(self, node_id: str, why: str) -> None:
        """Use a node no more, and warn of that; workers that are there are left to whoever asked."""
        self.left_out[node_id] = why
        for lent in [one for one in self._parked if one.node_id == node_id]:
            self.drop(lent)
        warnings.warn(NodeLeftOut(f"node {self.name_of(node_id)} is left out: {why}"), stacklevel=user_stacklevel())

    def use_all(self) -> None:
        """Let the next workers be on any node that is not left out: the plan for which nodes were compared is done."""
        self.alike = None

    @property
    def work(self) -> Work:
        """What is going on, as far as this program's workers are concerned; may be asked from any thread."""
        lent = [one for one in list(self._lent) if one.node_id is not None]
        return Work(len({one.node_id for one in lent}), len(lent), sum(one.asked() for one in lent))

    # ---- actors ----

    def lend(self, native_threads: int = 1) -> Lent:
        """Return an actor for the process of a worker: one that is free, or a new one, which waits for room on a node."""
        self._check_open()
        cores = max(self.num_cpus, native_threads)
        self._parked = [one for one in self._parked if not one.gone.done()]
        allowed = (one for one in self._parked if self.alike is None or one.node_id in self.alike)
        lent = next((one for one in allowed if one.cores == cores), None)
        if lent is None:
            lent = self._new_actor(cores)
        else:
            self._parked.remove(lent)
        lent.life = next(self._lives)
        self._lent.append(lent)
        return lent

    def _new_actor(self, cores: float) -> Lent:
        options: dict[str, Any] = {"num_cpus": cores, "scheduling_strategy": "SPREAD"}
        if self.num_gpus:
            options["num_gpus"] = self.num_gpus
        if self.resources:
            options["resources"] = self.resources
        if self._runtime_env:
            options["runtime_env"] = self._runtime_env
        if self.alike is not None:
            options["label_selector"] = {_NODE: f"in({','.join(sorted(self.alike))})"}
        elif self.left_out:
            options["label_selector"] = {_NODE: f"!in({','.join(sorted(self.left_out))})"}
        actor = self._relay.options(**options).remote(hash_seed.workers_hash_seed())
        lent = Lent(self, actor, cores)
        lent.host, lent.gone = actor.host.remote().future(), actor.stay.remote().future()
        return lent

    def take_back(self, lent: Lent) -> None:
        """Keep an actor whose process has ended for the next worker."""
        if self._closed or lent not in self._lent:
            return
        if lent.node_id in self.left_out:
            self.drop(lent)
            return
        self._lent.remove(lent)
        lent.asked = int
        self._parked.append(lent)

    def lose(self, lent: Lent) -> None:
        """Take note that an actor is lost; its node may be, and with it all that is parked there."""
        if lent.node_id is not None:
            self._doubted[lent.node_id] = time.monotonic()
        self.drop(lent)
        for one in [one for one in self._parked if one.node_id == lent.node_id]:
            self.drop(one)

    def drop(self, lent: Lent) -> None:
        """End an actor, and with it the process that it carries."""
        for some in (self._lent, self._parked):
            if lent in some:
                some.remove(lent)
        with suppress(Exception):  # it may be gone, with its node or with the whole cluster
            self._ray.kill(lent.actor)

    def release(self) -> None:
        """Give back the cores of actors that no worker needs now; later ones take as long as the first to start."""
        for lent in list(self._parked):
            self.drop(lent)

    @property
    def address(self) -> str:
        """Where others can reach it."""
        return str(self._ray.get_runtime_context().gcs_address)

    @property
    def pulse_seconds(self) -> float:
        """How often a worker that is long at one thing tells what it is at: less often where there are many."""
        return max(PULSE_SECONDS, len(self._lent) / _PULSES_A_SECOND)

    # ---- what is sent ----

    def answer(self, call: Any, seconds: float) -> Any:
        """Return what a call of an actor gives within so many seconds."""
        return self._ray.get(call, timeout=seconds)

    def pickled_start(self, factory: Factory, lent: Lent) -> bytes:
        """Return the first message of all workers with this factory."""
        self._bring_code(lent)
        known = self._starts.get(id(factory))
        if known is None:
            known = factory, pickled_start(factory)
            if len(known[1]) > _SHARED_BYTES:
                self._starts[id(factory)] = known
                _forget_oldest(self._starts)
        return known[1]

    def _bring_code(self, lent: Lent) -> None:
        """Let what is in modules of the user's travel by value, if a node cannot import these."""
        if len({str(node["NodeManagerAddress"]) for node in self._living()}) == 1:  # all is on one machine
            return
        names = [name for name, module in list(sys.modules.items()) if _is_users(name, module)]
        if asked := [name for name in names if name not in self._brought]:
            self._brought.update(dict.fromkeys(asked))
            path = [entry or str(Path.cwd()) for entry in sys.path]
            for name in self.answer(lent.actor.missing.remote(asked, path), _PLACED_SECONDS):
                self._brought[name] = module = sys.modules[name]
                cloudpickle.register_pickle_by_value(module)

    def shared(self, data: bytes) -> Any:
        """Return a reference to what is sent to many, if it is long: it goes to each node once. `None`: send it as it is."""
        if len(data) <= _SHARED_BYTES:
            return None
        if id(data) not in self._shared:
            self._shared[id(data)] = data, self._ray.put(data)
            _forget_oldest(self._shared)
            while len(self._shared) > 1 and sum(len(one) for one, _ in self._shared.values()) > _MOST_SHARED_BYTES:
                del self._shared[next(iter(self._shared))]
        return self._shared[id(data)][1]

    # ---- ending ----

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the cluster was closed; open it again with stretto.cluster(...)")

    def close(self) -> None:
        """End all actors, and Ray itself if this has started or joined it; may be called twice."""
        if self._closed:
            return
        self._closed = True
        if self in _open:
            _open.remove(self)
        if not self._ray.is_initialized():
            return
        for lent in [*self._lent, *self._parked]:
            self.drop(lent)
        self._shared.clear()
        for module in self._brought.values():
            if module is not None:
                cloudpickle.unregister_pickle_by_value(module)
        self._brought.clear()
        if self._owned:
            self._ray.shutdown()
            restore(self._environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cluster(
    address: str = "auto",
    *,
    num_cpus: float = 1,
    num_gpus: float = 0,
    resources: Mapping[str, float] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    cpus: int | None = None,
) -> Cluster:
    """Connect to a Ray cluster, for `backend="ray"`, and for evaluations and collections.

    Use as a context manager, or `close()` it. It holds actors on the nodes, and with them their cores, until then.

    Args:
        address: of a cluster, such as "10.0.0.1:6379". "auto": the one that runs on this machine, or that `RAY_ADDRESS`
            names. "local": a new one on this machine, which nobody else can reach, and which ends with this.
        num_cpus: how many cores each worker needs of its node, as Ray counts them.
        num_gpus: how many of its GPUs.
        resources: what else it needs, by the names that the nodes were started with.
        runtime_env: what Ray is to bring to the nodes, such as `{"working_dir": "."}` or `{"pip": ["mypackage"]}`.
        cpus: how many cores a "local" cluster has; by default all.

    Raises:
        UsageError: if Ray is not installed, or if there is no such cluster.
        ResourceError: if no node has what a worker needs.
    """
    wanted: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": resources}
    return Cluster(address, **wanted, runtime_env=runtime_env, cpus=cpus)


@contextmanager
def opened(address: Cluster | str | None) -> Iterator[Cluster | None]:
    """Give the cluster that somebody asks for: none, one that is open, or the one at an address, which is closed then."""
    if isinstance(address, str):
        with Cluster(address) as found:
            yield found
    else:
        if address is not None:
            address.count_again()
        yield address


_open: list[Cluster] = []
"""The clusters of this process; the one that was opened last is used."""


def current_cluster() -> Cluster:
    """Return the cluster that was opened last.

    Raises:
        UsageError: if there is none.
    """
    if not _open:
        raise UsageError(
            "backend='ray' needs a cluster, and none is open; use it within `with stretto.cluster('local'):`, or 'auto', or "
            "an address"
        )
    return _open[-1]


def work_now() -> Work | None:
    """Return what goes on on the cluster that was opened last; `None` if there is none."""
    return _open[-1].work if _open else None


def _is_users(name: str, module: ModuleType | None) -> bool:
    """Whether a module is the user's own; the main program travels by value in any case."""
    return name not in ("__main__", "__mp_main__") and is_users(getattr(module, "__file__", None))


def _told(resources: Mapping[str, float]) -> str:
    shown = {name: amount for name, amount in resources.items() if not name.startswith(("node:", "memory", "object_"))}
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(shown.items())) or "nothing"


def _forget_oldest(kept: dict[int, Any]) -> None:
    while len(kept) > _MOST_SHARED:
        del kept[next(iter(kept))]
