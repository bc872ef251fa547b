"""Foundry: cogs that mine ores, keep their energy up and craft hearts, on one grid that they contest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from stretto.core import Action, AgentId, TurnEnd
from stretto.errors import InvalidAction, ResetNeeded, UsageError
from stretto.games.foundry_maps import LAYOUTS, ORES, Cell, FoundryMap, draw_map
from stretto.games.foundry_view import CogSight, Scene, draw_image, draw_text
from stretto.seeding.streams import SeedTree

ACTION_NAMES = ("wait", "north", "east", "south", "west", "mine", "charge", "craft")
WAIT, NORTH, EAST, SOUTH, WEST, MINE, CHARGE, CRAFT = range(len(ACTION_NAMES))

PLANE_NAMES = ("wall", "cog", *ORES, "charger", "forge")
WALL_PLANE, COG_PLANE, ORE_PLANE, CHARGER_PLANE, FORGE_PLANE = 0, 1, 2, 2 + len(ORES), 3 + len(ORES)
SELF_NAMES = ("energy", *ORES, "south", "east", "step")
ENERGY_ENTRY, ORE_ENTRY, PLACE_ENTRY, STEP_ENTRY = 0, 1, 1 + len(ORES), 3 + len(ORES)

RECIPE = (2, 1, 1)
"""Units of each ore that one heart takes."""

VIEW = 11
REACH = VIEW // 2
CARGO = 8
FULL_ENERGY = 64
CHARGE_GAIN = 16
WAIT_GAIN = 1
COSTS = (0, 1, 1, 1, 1, 2, 0, 2)
"""Energy that each action takes, whether or not it has an effect."""

HEART_REWARD = 1.0
ORE_REWARD = 0.02

MAX_COGS = 64
MIN_SIDE, MAX_SIDE = 8, 64
ORE_SHADE = 5
"""What one unit of ore adds to its plane: 51 units at most, and all of them told apart."""

MAX_RICHNESS = 255 // ORE_SHADE


class Foundry:
    """A grid on which 1 to 64 cogs mine ores and craft hearts; each is on its own.

    A turn: each cog, in the order of `agents`, does one of `ACTION_NAMES`, with effect at once.

    - `north`, `east`, `south`, `west` move by one cell, unless a wall or another cog is there: there is one cog a cell.
    - `mine` takes one unit of ore from the deposit on the cog's own cell, if it carries fewer than 8 units in all. A
      deposit begins with `richness` units; what is taken is gone for everybody.
    - `charge` gives 16 of energy, up to 64, on a charger's cell.
    - `craft` makes a heart of 2 copper, 1 iron and 1 quartz, on a forge's cell.
    - `wait` gives 1 of energy.

    A move costs 1 of energy, `mine` and `craft` cost 2, also where they have no effect. A cog that has too little for
    what it tries waits instead. Before each turn, with probability `renewal`, one deposit drawn at random gets one unit
    back if it has less than it began with. Deposits, chargers and forges can be walked over.

    Rewards: 1 for a heart, to the cog that crafted it; and 0.02 for each unit mined that its next heart still lacked.
    After `max_steps` turns all cogs are truncated.

    A cog observes `planes`, the 11 by 11 cells around it with north up: 255 for a wall (and all beyond the map), another
    cog, a charger, a forge, and 5 a unit for what is left in a deposit, a plane for each kind of ore (`PLANE_NAMES`);
    and `self` (`SELF_NAMES`): energy / 64, units carried of each ore / 8, cells south and east of where it started / 64,
    and turns played / `max_steps`.

    The map depends on the arguments alone; where the cogs start and what renews itself depends on the episode's seed.

    Args:
        cogs: how many play.
        layout: how walls are drawn, and which numbers hold unless they are given: "open" (blocks here and there),
            "maze", "scarce" (few small deposits), "crowded" (rooms with doors) or "large" (caves).
        height, width: cells, 8 to 64.
        map_seed: which map of its layout.
        max_steps: turns in an episode.
        render_mode: `"rgb_array"`, `"ansi"` (text) or `None`.
        deposits: deposits of iron and of quartz; of copper there are twice as many, as a heart takes twice as much.
        richness: units in each deposit, at most 51.
        chargers, forges: how many there are.
        obstacles: the share of cells that are blocked; in a maze, of walls that are not opened into loops.
        renewal: how likely a unit grows back in a turn.
    """

    action_names = ACTION_NAMES

    def __init__(  # noqa: PLR0913  plain values by keyword, so that a mission is a dict of them
        self,
        cogs: int = 4,
        *,
        layout: str = "open",
        height: int = 16,
        width: int = 16,
        map_seed: int = 0,
        max_steps: int = 300,
        render_mode: str | None = None,
        deposits: int | None = None,
        richness: int | None = None,
        chargers: int | None = None,
        forges: int | None = None,
        obstacles: float | None = None,
        renewal: float | None = None,
    ) -> None:
        """Check the arguments, take from the layout what was not given, and draw the map."""
        _check_word("layout", layout, tuple(LAYOUTS))
        _check_word("render_mode", render_mode, (None, "rgb_array", "ansi"))
        chosen = LAYOUTS[layout]
        _check_whole("cogs", cogs, 1, MAX_COGS)
        _check_whole("height", height, MIN_SIDE, MAX_SIDE)
        _check_whole("width", width, MIN_SIDE, MAX_SIDE)
        _check_whole("map_seed", map_seed, 0, None)
        self.max_steps = _check_whole("max_steps", max_steps, 1, None)
        most = height * width
        counts = [
            _check_whole(name, chosen.count(name, height, width) if given is None else given, 1, most)
            for name, given in (("deposits", deposits), ("chargers", chargers), ("forges", forges))
        ]
        self.richness = _check_whole("richness", chosen.richness if richness is None else richness, 1, MAX_RICHNESS)
        share = _check_share("obstacles", chosen.obstacles if obstacles is None else obstacles, 0.9)
        self.renewal = _check_share("renewal", chosen.renewal if renewal is None else renewal, 1.0)
        self.map: FoundryMap = draw_map(
            chosen,
            (height, width),
            deposits=[counts[0] * need for need in RECIPE],
            stations=(counts[1], counts[2]),
            obstacles=share,
            generator=SeedTree(map_seed).child("map").generator(),
        )
        self.render_mode = render_mode
        self.metadata: dict[str, Any] = {"name": "foundry", "render_modes": ["rgb_array", "ansi"], "render_fps": 8}
        self.possible_agents: list[AgentId] = [f"cog_{cog}" for cog in range(cogs)]
        self.agents: list[AgentId] = []
        self._cog_of = {agent: cog for cog, agent in enumerate(self.possible_agents)}
        self._observation_space = spaces.Dict(
            {
                "planes": spaces.Box(0, 255, (len(PLANE_NAMES), VIEW, VIEW), np.uint8),
                "self": spaces.Box(-1.0, 1.0, (len(SELF_NAMES),), np.float32),
            }
        )
        self._action_spaces = {agent: spaces.Discrete(len(ACTION_NAMES)) for agent in self.possible_agents}
        self._np_random = np.random.default_rng()
        self._lay_out()

    def _lay_out(self) -> None:
        """Lay the map out as what a turn needs: cells are numbers, and a frame of walls is as wide as the view."""
        height, width = self.map.walls.shape
        stride: int = width + 2 * REACH
        self._stride = stride
        self._steps = (0, -stride, 1, stride, -1)
        self._view_cells = sum((1 << VIEW) - 1 << row * stride for row in range(VIEW))
        self._bare = np.zeros((len(PLANE_NAMES), height + 2 * REACH, stride), np.uint8)
        self._bare[WALL_PLANE] = 255
        self._bare[WALL_PLANE, REACH:-REACH, REACH:-REACH] = self.map.walls * np.uint8(255)
        self._ore_at = {self._number(cell): kind for cell, kind in self.map.ore_at.items()}
        self._deposits = list(self._ore_at)
        self._chargers = {self._number(cell) for cell in self.map.chargers}
        self._forges = {self._number(cell) for cell in self.map.forges}
        flat = self._bare.reshape(len(PLANE_NAMES), -1)
        flat[CHARGER_PLANE, list(self._chargers)] = 255
        flat[FORGE_PLANE, list(self._forges)] = 255
        for cell, kind in self._ore_at.items():
            flat[ORE_PLANE + kind, cell] = ORE_SHADE * self.richness
        built = {*self._ore_at, *self._chargers, *self._forges}
        cells = [self._number(cell) for cell in self.map.free_cells]
        self._starts = [cell for cell in cells if cell not in built]
        count = len(self.possible_agents)
        if len(self._starts) < count:
            raise UsageError(
                f"each cog must have a free cell to start on, got {count} cogs for {len(self._starts)} cells; ask for "
                f"fewer cogs or a larger map"
            )
        self._clear()

    def _number(self, cell: Cell) -> int:
        return (cell[0] + REACH) * self._stride + cell[1] + REACH

    def _cell(self, number: int) -> Cell:
        return number // self._stride - REACH, number % self._stride - REACH

    def _clear(self) -> None:
        """Put everything back as it is before an episode, without cogs."""
        count = len(self.possible_agents)
        self._planes: NDArray[np.uint8] = self._bare.copy()
        self._flat = self._planes.reshape(len(PLANE_NAMES), -1)
        # One cell of a bytearray is read in 23 ns, one of an array in 57.
        self._blocked = bytearray(self._flat[WALL_PLANE].astype(bool).tobytes())
        self._left = dict.fromkeys(self._deposits, self.richness)
        self._at = [0] * count
        self._start = [0] * count
        self._energy = [FULL_ENERGY] * count
        self._ores = [[0] * len(ORES) for _ in range(count)]
        self._hearts = [0] * count
        self._rewards = [0.0] * count
        self._own = np.zeros((count, len(SELF_NAMES)), np.float32)
        self._own[:, ENERGY_ENTRY] = 1.0
        self._step = self._touched = 0  # the turns that were played; the cells that changed in this one, as bits
        self._tried = [0] * len(ACTION_NAMES)
        self._mined = [0] * len(ORES)
        self._moves_blocked = self._energy_spent = self._energy_charged = self._empty_turns = self._renewed = 0

    def observation_space(self, agent: AgentId) -> spaces.Space[Any]:
        return self._observation_space

    def action_space(self, agent: AgentId) -> spaces.Space[Any]:
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if seed is not None:
            self._np_random = np.random.default_rng(seed)
        self._clear()
        self.agents = list(self.possible_agents)
        places = self._np_random.choice(len(self._starts), len(self.agents), replace=False)
        self._start = [self._starts[place] for place in places.tolist()]
        self._at = list(self._start)
        for cell in self._at:
            self._blocked[cell] = 1
            self._flat[COG_PLANE, cell] = 255

    def begin_turn(self) -> None:
        self._touched = 0
        if self._np_random.random() >= self.renewal:
            return
        cell = self._deposits[int(self._np_random.integers(len(self._deposits)))]
        if self._left[cell] < self.richness:
            self._left[cell] += 1
            self._flat[ORE_PLANE + self._ore_at[cell], cell] += ORE_SHADE
            self._renewed += 1

    def can_act(self, agent: AgentId) -> bool:
        return bool(self.agents) and agent in self._cog_of

    def observe(self, agent: AgentId) -> dict[str, NDArray[Any]]:
        cog = self._cog_of[agent]
        # The frame is as wide as the view reaches: wherever a cog stands, its view is one slice.
        row, column = divmod(self._at[cog], self._stride)
        planes = self._planes[:, row - REACH : row + REACH + 1, column - REACH : column + REACH + 1].copy()
        planes[COG_PLANE, REACH, REACH] = 0
        return {"planes": planes, "self": self._own[cog].copy()}

    def changed(self, agent: AgentId) -> bool:
        """Whether anything changed within the view of a cog since the turn began; its own act does not count."""
        corner = self._at[self._cog_of[agent]] - REACH * self._stride - REACH
        return bool(self._touched >> corner & self._view_cells)

    def act(self, agent: AgentId, action: Action) -> None:
        if not self.agents:
            raise ResetNeeded(f"a cog can act only during an episode, and {agent!r} acted after its end; reset first")
        cog, chosen = self._cog_of[agent], int(action)
        if not 0 <= chosen < len(ACTION_NAMES):
            raise InvalidAction(f"an action must be from 0 to {len(ACTION_NAMES) - 1}, got {action!r} for {agent!r}")
        energy = self._energy[cog]
        if energy == 0:
            self._empty_turns += 1
        cost = COSTS[chosen]
        if energy < cost:
            chosen = cost = WAIT
        self._tried[chosen] += 1
        self._energy_spent += cost
        energy -= cost
        if chosen == WAIT:
            energy = min(FULL_ENERGY, energy + WAIT_GAIN)
        elif chosen <= WEST:
            self._move(cog, self._at[cog] + self._steps[chosen])
        elif chosen == MINE:
            self._mine(cog)
        elif chosen == CRAFT:
            self._craft(cog)
        elif self._at[cog] in self._chargers:
            charged = min(FULL_ENERGY, energy + CHARGE_GAIN)
            self._energy_charged += charged - energy
            energy = charged
        self._energy[cog] = energy
        self._own[cog, ENERGY_ENTRY] = energy / FULL_ENERGY

    def _move(self, cog: int, target: int) -> None:
        if self._blocked[target]:
            self._moves_blocked += 1
            return
        cell, cogs = self._at[cog], self._flat[COG_PLANE]
        self._touched |= 1 << cell | 1 << target
        self._blocked[cell], self._blocked[target] = 0, 1
        cogs[cell], cogs[target] = 0, 255
        self._at[cog] = target
        south, east = divmod(target, self._stride)
        from_south, from_east = divmod(self._start[cog], self._stride)
        self._own[cog, PLACE_ENTRY] = (south - from_south) / MAX_SIDE
        self._own[cog, PLACE_ENTRY + 1] = (east - from_east) / MAX_SIDE

    def _mine(self, cog: int) -> None:
        cell, carried = self._at[cog], self._ores[cog]
        if not self._left.get(cell) or sum(carried) >= CARGO:
            return
        kind = self._ore_at[cell]
        if carried[kind] < RECIPE[kind]:
            self._rewards[cog] += ORE_REWARD
        self._touched |= 1 << cell
        self._left[cell] -= 1
        self._flat[ORE_PLANE + kind, cell] -= ORE_SHADE
        carried[kind] += 1
        self._own[cog, ORE_ENTRY + kind] = carried[kind] / CARGO
        self._mined[kind] += 1

    def _craft(self, cog: int) -> None:
        carried = self._ores[cog]
        if self._at[cog] not in self._forges or any(have < need for have, need in zip(carried, RECIPE, strict=True)):
            return
        carried[:] = [have - need for have, need in zip(carried, RECIPE, strict=True)]
        self._own[cog, ORE_ENTRY : ORE_ENTRY + len(ORES)] = [have / CARGO for have in carried]
        self._hearts[cog] += 1
        self._rewards[cog] += HEART_REWARD

    def end_turn(self) -> TurnEnd:
        agents = self.agents
        self._step += 1
        self._own[:, STEP_ENTRY] = self._step / self.max_steps
        over = self._step >= self.max_steps
        rewards = dict(zip(agents, self._rewards, strict=True))
        self._rewards = [0.0] * len(agents)
        if over:
            self.agents = []
        return TurnEnd(rewards, dict.fromkeys(agents, False), dict.fromkeys(agents, over), {a: {} for a in agents})

    def statistics(self) -> dict[str, float]:
        """Return sums over all cogs and the episode so far; `most_hearts` is that of the most successful cog."""
        return {
            "hearts": float(sum(self._hearts)),
            "most_hearts": float(max(self._hearts)),
            **{f"{ore}_mined": float(units) for ore, units in zip(ORES, self._mined, strict=True)},
            "ore_left": float(sum(self._left.values())),
            "ore_renewed": float(self._renewed),
            "moves": float(sum(self._tried[NORTH : WEST + 1])),
            "moves_blocked": float(self._moves_blocked),
            "waits": float(self._tried[WAIT]),
            "energy_spent": float(self._energy_spent),
            "energy_charged": float(self._energy_charged),
            "empty_turns": float(self._empty_turns),
        }

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        sights = [
            CogSight(self._cell(at), energy / FULL_ENERGY, tuple(ores), hearts)
            for at, energy, ores, hearts in zip(self._at, self._energy, self._ores, self._hearts, strict=True)
            if at
        ]
        left = {self._cell(cell): units / self.richness for cell, units in self._left.items()}
        scene = Scene(self.map, left, sights, CARGO, self._step)
        return draw_image(scene) if self.render_mode == "rgb_array" else draw_text(scene)

    def close(self) -> None:
        """Nothing is held."""


def _check_word(name: str, value: str | None, known: tuple[str | None, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}; pass one of them")


def _check_whole(name: str, value: Any, least: int, most: int | None) -> int:
    fits = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not fits or value < least or (most is not None and value > most):
        span = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise UsageError(f"{name} must be a whole number {span}, got {value!r}; pass {name}={least} or more")
    return int(value)


def _check_share(name: str, value: Any, most: float) -> float:
    if isinstance(value, bool | str) or not math.isfinite(value) or not 0 <= value <= most:
        raise UsageError(f"{name} must be a share from 0 to {most:g}, got {value!r}; pass {name}={most / 2:g}, say")
    return float(value)


def _mission(summary: str, cogs: int, layout: str, side: int, map_seed: int, **more: Any) -> dict[str, Any]:
    size = {"height": side, "width": side}
    return {"summary": summary, "kwargs": {"cogs": cogs, "layout": layout, **size, "map_seed": map_seed, **more}}


MISSIONS: dict[str, dict[str, Any]] = {
    "foundry_1": _mission("Four cogs on an open field.", 4, "open", 16, 1),
    "foundry_2": _mission("Six cogs in a maze, where only one can pass.", 6, "maze", 19, 2),
    "foundry_3": _mission("Eight cogs that contest few and small deposits.", 8, "scarce", 20, 3),
    "foundry_4": _mission("Twenty-four cogs in rooms with narrow doors.", 24, "crowded", 20, 4),
    "foundry_5": _mission("Sixteen cogs in caves, where everything is far away.", 16, "large", 40, 5, max_steps=500),
}

VARIANTS: dict[str, dict[str, Any]] = {
    "rich": {"richness": 40},
    "poor": {"richness": 4, "renewal": 0.1},
    "barren": {"renewal": 0.0},
    "sprint": {"max_steps": 100},
    "marathon": {"max_steps": 1000},
    "blackout": {"chargers": 1},
    "bottleneck": {"forges": 1},
}
