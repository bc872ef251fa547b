"""Pictures of worlds: whether a mission has any, and what they show."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.adapters.agents import as_agents
from stretto.adapters.local import LocalWorlds
from stretto.core import NextEpisode
from stretto.missions.mission import Mission
from stretto.seeding import GLOBAL_GENERATORS

__calls_user_code__ = True

RGB = "rgb_array"
Picture = NDArray[np.uint8]


def make_visible(mission: Mission, render_mode: str | None) -> tuple[Any, bool]:
    """Make a world, and say whether it can be seen in this way; it is asked first, since worlds warn of other ways."""
    env = mission.make()
    if render_mode not in (getattr(env, "metadata", None) or {}).get("render_modes", ()):
        return env, False
    env.close()
    return mission.make_with(render_mode)(), True


def visible_worlds(env: Any, turns: str) -> LocalWorlds:
    """Return a world that is looked at, in a slot of its own.

    It has private generators, whether they are needed or not: looking at everything is slow anyway.
    """
    return LocalWorlds(lambda _: as_agents(env, turns), 1, GLOBAL_GENERATORS)


def rgb(shown: Any) -> Picture | None:
    """Return what `render()` gave as red, green and blue; None if it is no picture."""
    array: NDArray[Any] = np.asarray(shown) if not isinstance(shown, str | None) else np.empty(0)
    if array.ndim != 3 or not array.size or array.shape[2] not in (1, 3, 4):
        return None
    return np.broadcast_to(array[:, :, :3], (*array.shape[:2], 3)).astype(np.uint8)


def why_unseen(mission: Mission, turns: str) -> str:
    """Say why episodes of a mission cannot be filmed; nothing if they can."""
    env, shows = make_visible(mission, RGB)
    if not shows:
        env.close()
        return f"its metadata has no render mode {RGB!r}"
    with closing(visible_worlds(env, turns)) as worlds:
        outcome = worlds.reset({0: NextEpisode(0)})[0]
        if isinstance(outcome, BaseException):
            return f"its reset() raises {outcome!r}"
        try:
            shown = worlds.render(0)
        except Exception as error:  # noqa: BLE001  a world that cannot be shown can be played all the same
            return f"its render() raises {error!r}"
    return "" if rgb(shown) is not None else f"its render() gives no RGB array, but {type(shown).__name__}"
