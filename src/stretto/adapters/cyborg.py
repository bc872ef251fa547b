"""CybORG's second CAGE challenge: an agent defends a network, with the challenge's own wrappers around it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from stretto.errors import UsageError

__calls_user_code__ = True

RED = {"b_line": "B_lineAgent", "meander": "RedMeanderAgent", "sleep": "SleepAgent"}
"""The attackers of the challenge, and how CybORG calls them."""

MISSIONS: Mapping[str, Mapping[str, Any]] = {
    "cage2_b_line": {
        "summary": "CAGE challenge 2: defend a network against an attacker who knows the way",
        "kwargs": {"red": "b_line"},
    },
    "cage2_meander": {
        "summary": "CAGE challenge 2: defend a network against an attacker who takes host after host",
        "kwargs": {"red": "meander"},
    },
    "cage2_sleep": {
        "summary": "CAGE challenge 2: leave a network in peace that nobody attacks",
        "kwargs": {"red": "sleep"},
    },
}

VARIANTS: Mapping[str, Mapping[str, Any]] = {"no_decoys": {"actions": 41}}

_ALL, _WITHOUT_DECOYS = 145, 41
_SCENARIO = "Scenario2"
_BITS = 52
_ACCESS = {"None": 0, "User": 1, "Privileged": 2}


def make(red: Any = "b_line", actions: int = _ALL, max_steps: int | None = 100) -> gymnasium.Env[Any, Any]:
    """Return the challenge as Blue, the defender, sees it. After `max_steps` steps an episode is truncated.

    Args:
        red: `"b_line"`, `"meander"` or `"sleep"`, or a class of CybORG's agents.
        actions: 145, or 41 without decoys.
        max_steps: the challenge has 30, 50 and 100.
    """
    env = Cage2(red, actions)
    return env if max_steps is None else TimeLimit(env, max_steps)


class Cage2(gymnasium.Env[Any, Any]):
    """What the challenge's wrapper gives for an action, as a `gymnasium.Env`.

    CybORG draws from the global `random` alone. A reset with a seed seeds it as CybORG's own `set_seed` does.

    Attributes:
        cyborg: CybORG's own object.
        action_names: what each action does, such as "Analyse User0".
        hosts: the names of the hosts, in the order of `true_state`.
    """

    metadata = {"render_modes": ["ansi"], "name": "cage2"}  # noqa: RUF012  as Gymnasium spells it
    observation_space: spaces.Box
    action_space: spaces.Discrete

    def __init__(self, red: Any = "b_line", actions: int = _ALL, render_mode: str | None = None) -> None:
        if actions not in {_ALL, _WITHOUT_DECOYS}:
            raise UsageError(f"actions must be {_ALL}, or {_WITHOUT_DECOYS} without decoys, got {actions!r}")
        from CybORG import CybORG
        from CybORG.Agents.Wrappers import BlueTableWrapper

        folder = Path(inspect.getfile(CybORG)).parent
        scenario = folder / "Shared" / "Scenarios" / f"{_SCENARIO}.yaml"
        self.render_mode = render_mode
        self.cyborg = CybORG(str(scenario), "sim", agents={"Red": _red_agent(red)})
        self._table = BlueTableWrapper(self.cyborg, output_mode="vector")
        self._decoys = actions == _ALL
        self._actions = _Actions(self._table, decoys=self._decoys)
        self.action_names = tuple(map(str, self._actions.all))
        self.observation_space = spaces.Box(-1.0, 1.0, (_BITS,), np.float32)
        self.action_space = spaces.Discrete(len(self._actions.all))
        self.hosts = tuple(self.cyborg.environment_controller.state.hosts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.cyborg.set_seed(seed)
        result = self._table.reset("Blue")
        self._actions.see(self.cyborg.get_action_space("Blue"))
        return np.asarray(result.observation, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = self._table.step("Blue", self._actions.all[int(action)])
        self._actions.see(result.action_space)
        return np.asarray(result.observation, np.float32), float(result.reward), bool(result.done), False, {}

    def true_state(self) -> NDArray[np.int8]:
        """Return what is true of each host, whatever Blue knows of it: a row for each, in the order of `hosts`.

        The columns say whether the attacker knows it, whether the attacker has scanned it, and what access it has: 0
        none, 1 a user's, 2 all.
        """
        asked = {host: {"Interfaces": "All", "Sessions": "All"} for host in self.hosts}
        seen = self.cyborg.get_true_state(asked)
        known, scanned = self.cyborg.get_action_space("Red")["ip_address"], self._table.env.scanned_ips
        rows = np.zeros((len(self.hosts), 3), np.int8)
        for row, host in zip(rows, self.hosts, strict=True):
            about = seen.get(host, {})
            address = next(one["IP Address"] for one in about["Interface"] if _is_its_own(one))
            sessions = [one for one in about.get("Sessions", ()) if one["Agent"] == "Red"]
            access = self._table.env._determine_red_access(sessions)  # noqa: SLF001  as the challenge's true table has it
            row[:] = known[address], str(address) in scanned, _ACCESS[access]
        return rows

    def render(self) -> str:
        """Return the table that Blue sees."""
        return str(self._table.get_table())

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self, name) if hasattr(self, name) else getattr(self.cyborg, name)


class _Actions:
    """The actions of Blue by number, as CybORG's enumeration of them has them.

    That enumeration is made anew in every step, which takes a tenth of it. Here it is made where there is something new to
    enumerate.
    """

    def __init__(self, table: Any, *, decoys: bool) -> None:
        from CybORG.Agents.Wrappers import EnumActionWrapper

        self._enumeration, self._decoys = EnumActionWrapper(table), decoys
        self._seen: Any = None
        self.all: list[Any] = []
        self.see(table.get_action_space("Blue"))

    def see(self, action_space: Mapping[str, Mapping[Any, Any]]) -> None:
        """Take note of what Blue may do now."""
        seen = {name: tuple(values) for name, values in action_space.items()}
        if seen == self._seen:
            return
        self._seen = seen
        self._enumeration.action_space_change(action_space)
        found = self._enumeration.possible_actions
        self.all = [one for one in found if self._decoys or not type(one).__name__.startswith("Decoy")]


def _red_agent(red: Any) -> type:
    from CybORG import Agents
    from CybORG.Agents.SimpleAgents import Meander

    if isinstance(red, type):
        return red
    name = RED.get(red)
    if name is None:
        raise UsageError(f"red must be one of {', '.join(RED)}, or a class of CybORG's agents, got {red!r}")
    found: type = getattr(Agents, name, None) or getattr(Meander, name)
    return found


def _is_its_own(interface: Mapping[str, Any]) -> bool:
    """Whether an interface is the host's own in its network, and no loop."""
    return "Subnet" in interface and str(interface["IP Address"]) != "127.0.0.1"
