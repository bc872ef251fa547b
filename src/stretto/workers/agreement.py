"""Agreement: nodes of a cluster that give other numbers than most are found at the start, and left out by name."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.errors import ResourceError
from stretto.workers.cluster import Cluster
from stretto.workers.ray import RayWorker
from stretto.workers.requests import Request, Seat, sender
from stretto.workers.supervisor import Supervisor

_MUST_BE_SAME = ("stretto", "stretto source", "python")
"""What must be the same wherever work goes: pickles cross, and records say what made them."""

_LOOK_SECONDS = 1.0
"""How often it is looked which nodes there are, while workers start."""


def leave_out_who_differs(
    supervisor: Supervisor, cluster: Cluster, message: object, doing: str, limit_seconds: float | None
) -> str:
    """Ask a worker on each node for the digest that `message` asks for; use only nodes that have the one of most workers.

    Returns that digest; it is empty where none could be had, because code that dies tells nothing of its node. A node that
    joins the cluster later is not used.

    Raises:
        ResourceError: if no node can be used.
    """
    cluster.alike = None  # with another plan they may differ
    asked = _ask_each_node(supervisor, cluster, message, doing, limit_seconds)
    digests = {node: _digest(request) for node, (_, request) in asked.items()}
    rooms = cluster.rooms()
    chosen = _most({node: one for node, one in digests.items() if one}, rooms)
    reference = next((_installation(asked[node][0]) for node, one in digests.items() if one == chosen), {})
    for node, (seat, _) in asked.items():
        if why := _why_not(digests[node], chosen, _installation(seat), reference):
            cluster.leave_out(node, why)
    for seat in supervisor.seats:
        if isinstance(seat.worker, RayWorker) and seat.worker.node_id in cluster.left_out:
            supervisor.discard(seat)
            seat.requests.clear()
    cluster.alike = set(asked) - set(cluster.left_out)
    without_room = len(supervisor.seats) - sum(room for node, room in rooms.items() if node in cluster.alike)
    waiting = [one for one in supervisor.seats if isinstance(one.worker, RayWorker) and one.worker.node_id is None]
    for seat in waiting[: max(0, without_room)]:  # there were more nodes when they were asked for
        supervisor.discard(seat)
        seat.requests.clear()
    if not cluster.alike:
        raise ResourceError("no node of the cluster can be used; see the warnings for why")
    return chosen


def _ask_each_node(
    supervisor: Supervisor, cluster: Cluster, message: object, doing: str, limit_seconds: float | None
) -> dict[str, tuple[Seat, Request]]:
    """Start all workers; ask the first one on each node, and wait for the answers."""
    for seat in supervisor.seats:
        if seat.worker is None:
            supervisor.start(seat)
    starting = {seat.index: seat.requests[0] for seat in supervisor.seats if seat.requests}
    asked: dict[str, tuple[Seat, Request]] = {}
    while waiting := [*starting.values(), *(request for _, request in asked.values() if not request.finished)]:
        if asked.keys() >= cluster.rooms().keys() and all(request.finished for _, request in asked.values()):
            break  # whoever has not started yet is on a node that is known
        # Not for ever: a node that was counted may be lost, and who waits for room there never starts.
        supervisor.wait(waiting, 1, _LOOK_SECONDS)
        for index, request in list(starting.items()):
            if not request.finished:
                continue
            del starting[index]
            worker = request.seat.worker
            if isinstance(worker, RayWorker) and worker.node_id is not None and worker.node_id not in asked:
                asked[worker.node_id] = (
                    request.seat,
                    supervisor.ask(request.seat, sender(message), doing, limit_seconds),
                )
            elif request.error is not None and not request.lost and not (asked or starting):
                raise request.error
    return asked


def _digest(request: Request) -> str:
    """Return what a node has answered; what its code raised counts too, and the death of a worker does not."""
    if request.lost:
        return ""
    return str(request.value) if request.error is None else f"{type(request.error).__name__}: {request.error}"


def _most(digests: Mapping[str, str], rooms: Mapping[str, int]) -> str:
    """Return the digest that most workers would have; where two have as many, the first by its letters."""
    votes: dict[str, int] = {}
    for node, digest in digests.items():
        votes[digest] = votes.get(digest, 0) + rooms.get(node, 0)
    return min(votes, key=lambda digest: (-votes[digest], digest), default="")


def _installation(seat: Seat) -> Mapping[str, str]:
    worker = seat.worker
    return worker.installation if isinstance(worker, RayWorker) else {}


def _why_not(digest: str, chosen: str, here: Mapping[str, str], reference: Mapping[str, str]) -> str:
    """Say why a node cannot be used; nothing if it can."""
    other = {
        name: (here.get(name, "none"), reference.get(name, "none"))
        for name in sorted({*here, *reference})
        if here and reference and here.get(name) != reference.get(name)
    }
    told = "; ".join(f"{name} {mine} in place of {theirs}" for name, (mine, theirs) in other.items())
    if wrong := [name for name in _MUST_BE_SAME if name in other]:
        return f"it has another {wrong[0]} than the others ({told}); install the same everywhere"
    if digest and digest != chosen:
        return f"the same first steps give other numbers there than on the others ({told or 'same versions'})"
    return ""
