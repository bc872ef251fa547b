"""Netdefense: one defender, a network of thirteen hosts, and an attacker that wants the operational server."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from stretto.errors import InvalidAction, ResetNeeded, UsageError

Bits = NDArray[np.int8]
Info = dict[str, Any]

HOSTS = (*(f"user{i}" for i in range(5)), *(f"server{i}" for i in range(4)), "defender", "ops_server", "ops0", "ops1")
SUBNETS = (range(5), range(5, 10), range(10, 13))
VALUES = (0.1,) * 5 + (0.5,) * 5 + (1.0, 0.2, 0.2)
SERVICES = ("ssh", "web", "mail", "files", "database", "desktop")
OFFERED = (("files", "desktop"),) * 5 + (("ssh", "web"),) * 2 + (("ssh", "database"),) * 2 + (("ssh",),) * 4
KINDS = ("analyse", "remove", "restore", "isolate", "harden", *(f"decoy_{service}" for service in SERVICES))
ACTIONS = ("wait", "monitor", *(f"{kind} {host}" for host in HOSTS for kind in KINDS))
CLEAN, USER, ROOT = range(3)
NOTHING, SUSPECTED, KNOWN_USER, KNOWN_ROOT = range(4)
SEEN_SCAN, SEEN_ATTACK = 1, 2
OUTSIDE, NOWHERE = -1, -2
DEFENDER, OPS_SERVER = HOSTS.index("defender"), HOSTS.index("ops_server")

ISOLATED_STEPS, HARDENED_STEPS = 4, 10
RESTORE_COST, IMPACT_COST, ISOLATION_FACTOR = 1.0, 10.0, 3.0
EXPLOIT_CHANCE, HARDENED_CHANCE = 0.8, 0.4
SCAN_SEEN_CHANCE, ATTACK_SEEN_CHANCE, FALSE_ALARM_CHANCE = 0.6, 0.75, 0.1

MISSIONS: dict[str, dict[str, Any]] = {
    "netdefense_b_line": {"summary": "Hold 13 hosts against one that knows its way.", "kwargs": {"red": "b_line"}},
    "netdefense_meander": {"summary": "Hold 13 hosts against one that takes all.", "kwargs": {"red": "meander"}},
}
VARIANTS: dict[str, dict[str, Any]] = {"short": {"max_steps": 30}, "long": {"max_steps": 300}}

Deed = StrEnum("Deed", ["WAIT", "SCAN", "EXPLOIT", "ESCALATE", "IMPACT"])

_SUBNET_OF = tuple(number for number, hosts in enumerate(SUBNETS) for _ in hosts)
_NEAR = (range(5), (*range(5, 10), *range(5)), (*range(10, 13), *range(5, 10)))  # those next to a subnet come last
_REAL = tuple(tuple(SERVICES.index(name) for name in names) for names in OFFERED)
_LEVEL_COLOURS = ((88, 160, 96), (236, 168, 52), (196, 52, 44))
_BELIEF_COLOURS = ((56, 100, 64), (240, 236, 150), *_LEVEL_COLOURS[USER:])
# Row and column of the middle of each host in the picture; the last is OUTSIDE.
_PLACES = [(62 + 72 * y, 180 + 36 * (2 * x + 1 - len(row))) for y, row in enumerate(SUBNETS) for x in range(len(row))]
_PLACES.append((13, 180))


class Network:
    """The true state of all hosts: a list with an entry for each host, for each thing that can be true of one."""

    def __init__(self) -> None:
        count = len(HOSTS)
        self.levels = [CLEAN] * count
        self.isolated, self.hardened = [0] * count, [0] * count  # for how many more steps
        self.scanned = [False] * count
        self.taken = [False] * count  # whether the attacker was ever root there
        self.decoys: list[list[int]] = [[] for _ in range(count)]
        self.route = (0, 5, OPS_SERVER)  # of an attacker that has one

    def source_for(self, subnet: int) -> int:
        """Return from where the attacker reaches a subnet: a host, `OUTSIDE`, or `NOWHERE` if it does not."""
        for host in _NEAR[subnet]:
            if self.levels[host] == ROOT and not self.isolated[host]:
                return host
        return NOWHERE if subnet else OUTSIDE


def go_straight(network: Network, rng: np.random.Generator) -> tuple[Deed, int]:
    """Choose what brings the attacker on along its route, starting from the last host that is left to it."""
    for host in [host for host in reversed(network.route) if not network.isolated[host]]:
        level = network.levels[host]
        if level == ROOT:
            return (Deed.IMPACT if host == OPS_SERVER else Deed.WAIT), host
        if level == USER:
            return Deed.ESCALATE, host
        if network.source_for(_SUBNET_OF[host]) != NOWHERE:
            return (Deed.EXPLOIT if network.scanned[host] else Deed.SCAN), host
    return Deed.WAIT, network.route[0]


def meander(network: Network, rng: np.random.Generator) -> tuple[Deed, int]:
    """Choose what completes a subnet: all of it scanned, then its hosts taken one by one."""
    levels, isolated, taken = network.levels, network.isolated, network.taken
    if levels[OPS_SERVER] == ROOT and not isolated[OPS_SERVER]:
        return Deed.IMPACT, OPS_SERVER
    goal = OPS_SERVER if all(taken) else taken.index(False)
    subnet = frontier = _SUBNET_OF[goal]
    while network.source_for(subnet) == NOWHERE:
        subnet -= 1
    hosts = [host for host in SUBNETS[subnet] if levels[host] != ROOT and not isolated[host]]
    # Hosts that it had and lost do not hold it up, unless it needs one to go on from.
    if subnet == frontier and not taken[goal]:
        hosts = [host for host in hosts if not taken[host]]
    for host in hosts:
        if levels[host] == USER:
            return Deed.ESCALATE, host
    unscanned = [host for host in hosts if not network.scanned[host]]
    choices = unscanned or hosts
    if not choices:
        return Deed.WAIT, goal
    return (Deed.SCAN if unscanned else Deed.EXPLOIT), choices[int(rng.random() * len(choices))]


REDS: dict[str, Callable[[Network, np.random.Generator], tuple[Deed, int]]]
REDS = {"b_line": go_straight, "meander": meander}


class Netdefense(gymnasium.Env[Bits, Any]):
    """A defender that sees what its sensors tell holds a network against a scripted attacker.

    **Hosts.** `user0` to `user4`; `server0` to `server3` and the defender's own host `defender`; `ops_server`, `ops0`
    and `ops1`: three subnets, in this order. The attacker has nothing on a host (clean), `user` or `root`. It reaches
    the user subnet from outside at any time, and every subnet in which, or next before which, it is root on a host.

    **Actions.** In a step the defender acts, then the attacker, and then costs are due. Action 0 waits. 1 monitors: all
    that the attacker does in this step is seen, and an escalation shows as an attack. 2 + 11 × host + kind is something
    done to a host (`ACTIONS` has all names), with a kind from `KINDS`:

    - `analyse`: the defender learns what the attacker has on the host.
    - `remove`: ends `user` access, and does nothing against `root`. The defender is not told which it was.
    - `restore`: makes the host clean, without decoys or hardening; the attacker has to scan it again. Costs 1.
    - `isolate`: for 4 steps with this one, nothing reaches the host or comes from it. Costs 3 times its value each step.
    - `harden`: for 10 steps with this one, an exploit works with chance 0.4 rather than 0.8.
    - `decoy_ssh`, `_web`, `_mail`, `_files`, `_database`, `_desktop`: the host seems to offer a service; no effect where
      it truly does (`OFFERED`) or the decoy is there already.

    **The attacker** does one thing a step. It scans a host; exploits one that it has scanned, which gives it `user` if it
    works; escalates from `user` to `root`, which always works; and, once it is root on `ops_server`, impacts it. An
    exploit is aimed at any of the services that the host seems to offer; at a decoy it fails, is always seen, and uses
    it up. With `red="b_line"` it goes by one user host and one server, drawn at reset, straight to `ops_server`, and
    starts again from the last host that is left to it. With `red="meander"` it scans all hosts of a subnet, takes them
    in random order, and goes on once it was root on each; what it then loses it takes again only to get further.

    **Observation.** Four bits for each host: a scan was seen in this step; an attack was seen in this step; and two for
    the belief: 00 nothing, 01 suspected, 10 `user`, 11 `root`. A scan is seen with chance 0.6, an exploit with 0.75, an
    escalation never (unless monitored). With chance 0.1 a false alarm shows on a random host, a scan or an attack. While
    the attacker is root on `defender`, the sensors report nothing at all. A seen attack makes "nothing" into
    "suspected"; `analyse` makes the belief true; `remove` turns `user` into "suspected"; `restore` leaves "nothing".

    **Reward.** Each step, minus the value of every host with `root`, and half of it with `user`; minus 3 times the value
    of every isolated host; minus 1 for `restore`; minus 10 for an impact. A user host is worth 0.1, a server and
    `defender` 0.5, `ops_server` 1, `ops0` and `ops1` 0.2. The episode is truncated after `max_steps`.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012  as Gymnasium spells it
    action_names = ACTIONS

    def __init__(self, red: str = "b_line", max_steps: int = 100, render_mode: str | None = None) -> None:
        if red not in REDS:
            raise UsageError(f"red must be one of {', '.join(map(repr, REDS))}, got {red!r}")
        if type(max_steps) is not int or max_steps < 1:
            raise UsageError(f"max_steps must be a whole number of at least 1, got {max_steps!r}; the default is 100")
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise UsageError(f"render_mode must be None or one of {', '.join(map(repr, modes))}, got {render_mode!r}")
        self.red, self.max_steps, self.render_mode = red, max_steps, render_mode
        self.observation_space = spaces.MultiBinary(4 * len(HOSTS))
        self.action_space = spaces.Discrete(len(ACTIONS))
        self._running = False
        self._begin()

    def _begin(self) -> None:
        self._network = Network()
        self._beliefs, self._seen = [NOTHING] * len(HOSTS), [0] * len(HOSTS)
        self._steps, self._compromised, self._rooted = 0, 0, 0
        self._deed, self._source, self._target = Deed.WAIT, OUTSIDE, OUTSIDE
        names = ("impacts", "restores", "decoys_placed", "decoys_hit", "exploits", "exploits_seen")
        self._counts = dict.fromkeys(names, 0)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Bits, Info]:
        super().reset(seed=seed)
        self._begin()
        self._network.route = (int(self.np_random.integers(5)), int(self.np_random.integers(5, 9)), OPS_SERVER)
        self._running = True
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Bits, float, bool, bool, Info]:
        if not self._running:
            raise ResetNeeded("a step needs an episode that has begun and is not over; call reset() first")
        number = int(action)
        if not 0 <= number < len(ACTIONS):
            raise InvalidAction(f"an action must be from 0 to {len(ACTIONS) - 1}, got {number}; see ACTIONS")
        self._seen = [0] * len(HOSTS)
        cost = self._defend(*divmod(number - 2, len(KINDS))) if number >= 2 else 0.0
        cost += self._attack(monitored=number == 1)
        if self.np_random.random() < FALSE_ALARM_CHANCE:
            shown = SEEN_SCAN if self.np_random.random() < 0.5 else SEEN_ATTACK
            self._report(int(self.np_random.random() * len(HOSTS)), shown, chance=1)
        cost += self._close_step()
        self._steps += 1
        self._running = self._steps < self.max_steps
        return self._observe(), 0.0 - cost, False, not self._running, {}

    def _defend(self, host: int, kind: int) -> float:
        """Do something to a host; return what it costs at once."""
        network, beliefs = self._network, self._beliefs
        match KINDS[kind]:
            case "analyse":
                beliefs[host] = (NOTHING, KNOWN_USER, KNOWN_ROOT)[network.levels[host]]
            case "remove":
                network.levels[host] = ROOT if network.levels[host] == ROOT else CLEAN
                beliefs[host] = SUSPECTED if beliefs[host] == KNOWN_USER else beliefs[host]
            case "restore":
                network.levels[host], network.hardened[host], network.scanned[host] = CLEAN, 0, False
                network.decoys[host].clear()
                beliefs[host] = NOTHING
                self._counts["restores"] += 1
                return RESTORE_COST
            case "isolate":
                network.isolated[host] = ISOLATED_STEPS
            case "harden":
                network.hardened[host] = HARDENED_STEPS
            case _:
                service = kind - KINDS.index("decoy_ssh")
                if service not in _REAL[host] and service not in network.decoys[host]:
                    network.decoys[host].append(service)
                    self._counts["decoys_placed"] += 1

        return 0.0

    def _attack(self, monitored: bool) -> float:
        """Let the attacker do what it chooses; return what it costs at once."""
        network, random, sure = self._network, self.np_random.random, float(monitored)
        deed, host = REDS[self.red](network, self.np_random)
        self._deed, self._target = deed, host
        if deed is not Deed.WAIT:
            self._source = host if network.levels[host] else network.source_for(_SUBNET_OF[host])
        if deed is Deed.SCAN:
            network.scanned[host] = True
            self._report(host, SEEN_SCAN, sure or SCAN_SEEN_CHANCE)
        elif deed is Deed.EXPLOIT:
            real, decoys = len(_REAL[host]), network.decoys[host]
            choice = int(random() * (real + len(decoys))) - real
            self._counts["exploits"] += 1
            self._counts["exploits_seen"] += self._report(host, SEEN_ATTACK, sure or choice >= 0 or ATTACK_SEEN_CHANCE)
            if choice >= 0:
                del decoys[choice]
                self._counts["decoys_hit"] += 1
            elif random() < (HARDENED_CHANCE if network.hardened[host] else EXPLOIT_CHANCE):
                network.levels[host] = USER
        elif deed is Deed.ESCALATE:
            self._report(host, SEEN_ATTACK, sure)
            network.levels[host], network.taken[host] = ROOT, True
        elif deed is Deed.IMPACT:
            self._counts["impacts"] += 1
            return IMPACT_COST
        return 0.0

    def _report(self, host: int, shown: int, chance: float) -> bool:
        """Show something on the sensors, with a chance and if they work; return whether it was shown."""
        if self._network.levels[DEFENDER] == ROOT or self.np_random.random() >= chance:
            return False
        self._seen[host] |= shown
        if shown == SEEN_ATTACK and self._beliefs[host] == NOTHING:
            self._beliefs[host] = SUSPECTED
        return True

    def _close_step(self) -> float:
        """Return what the hosts cost in this step, and let isolation and hardening run down."""
        network, levels = self._network, self._network.levels
        hosts = zip(VALUES, levels, network.isolated, strict=True)
        cost = sum(value * (level / ROOT + ISOLATION_FACTOR * (left > 0)) for value, level, left in hosts)
        self._compromised += len(HOSTS) - levels.count(CLEAN)
        self._rooted += levels.count(ROOT)
        network.isolated = [left - 1 if left else 0 for left in network.isolated]
        network.hardened = [left - 1 if left else 0 for left in network.hardened]
        return cost

    def _observe(self) -> Bits:
        hosts = zip(self._seen, self._beliefs, strict=True)
        return np.array([(seen & 1, seen >> 1, belief >> 1, belief & 1) for seen, belief in hosts], np.int8).ravel()

    def true_state(self) -> Info:
        """Return what is true of every host, in the order of `HOSTS`, and the attacker's last deed.

        A level is 0 (clean), 1 (user) or 2 (root); of the deed, there is what it was, from where, and to which host.
        None of it is for the defender: it serves to judge one, and to look on.
        """
        network, names = self._network, (*HOSTS, "outside")  # the last of them, as OUTSIDE is -1
        return {
            "levels": tuple(network.levels),
            "isolated": tuple(network.isolated),
            "hardened": tuple(network.hardened),
            "scanned": tuple(network.scanned),
            "decoys": tuple(tuple(SERVICES[service] for service in decoys) for decoys in network.decoys),
            "attacker": (str(self._deed), names[self._source], names[self._target]),
        }

    def statistics(self) -> dict[str, float]:
        """Return the episode so far: hosts with `user` or `root`, and with `root`, on average; the rest are counts."""
        sums = {"hosts_compromised": self._compromised, "hosts_rooted": self._rooted}
        means = {name: total / max(self._steps, 1) for name, total in sums.items()}
        return means | {name: float(count) for name, count in self._counts.items()}

    def render(self) -> Any:
        """Return a picture, a text, or `None`, as `render_mode` says.

        The picture has a row for outside and one for each subnet. A host is filled by what the attacker truly has
        (green, amber, red) and framed by what the defender believes (pale yellow: suspected). A white mark in it is a
        scan that was seen, a black one an attack; blue ones are decoys, grey bars mean isolation. The attacker is the
        violet square, and a line leads from it to its target. The bar below is the time.
        """
        if self.render_mode == "ansi":
            return self._text()
        return self._picture() if self.render_mode == "rgb_array" else None

    def _text(self) -> str:
        state = self.true_state()
        deed, source, target = state["attacker"]
        lines = [f"step {self._steps} of {self.max_steps}; {self.red}: {deed} at {target} from {source}"]
        for host, name in enumerate(HOSTS):
            true = ("clean", "user", "root")[state["levels"][host]] + (", isolated" if state["isolated"][host] else "")
            belief = ("nothing", "suspected", "user", "root")[self._beliefs[host]]
            seen = ("-", "scan", "attack", "scan, attack")[self._seen[host]]
            decoys = ", ".join(state["decoys"][host]) or "-"
            lines.append(f"{name:<10} {true:<15} believed: {belief:<9} seen: {seen:<12} decoys: {decoys}")
        return "\n".join(lines)

    def _picture(self) -> NDArray[np.uint8]:
        network = self._network
        image = np.full((248, 360, 3), 28, np.uint8)
        for row in (28, 100, 172):
            image[row : row + 68] = (56, 60, 72)
        for host in range(len(HOSTS)):
            y, x = _PLACES[host]
            image[y - 24 : y + 24, x - 24 : x + 24] = _BELIEF_COLOURS[self._beliefs[host]]
            inner = image[y - 18 : y + 18, x - 18 : x + 18]
            inner[:] = _LEVEL_COLOURS[network.levels[host]]
            if network.isolated[host]:
                inner[:, ::6] = inner[:, 1::6] = (120, 120, 120)
            if self._seen[host] & SEEN_SCAN:
                inner[3:11, 3:11] = 255
            if self._seen[host] & SEEN_ATTACK:
                inner[3:11, 25:33] = 0
            for service in network.decoys[host]:
                inner[28:33, 1 + 6 * service : 5 + 6 * service] = (60, 110, 230)
        (y, x), (to_y, to_x) = _PLACES[self._source], _PLACES[self._target]
        rows, columns = np.linspace((y, x), (to_y, to_x), 400).astype(int).T
        image[rows, columns] = image[rows + 1, columns] = image[rows, columns + 1] = (176, 72, 216)
        image[y - 7 : y + 7, x - 7 : x + 7] = (176, 72, 216)
        image[242:, : 360 * self._steps // self.max_steps] = 220
        return image
