"""Ids that the caller has registered with Gymnasium: a function that makes an environment by its id finds it in workers too.

Workers import only what they need, so that `lambda: gymnasium.make("Mine-v0")` would fail there if the main program, or a
package that it imports, has registered `Mine-v0`.
"""

from __future__ import annotations

import pickle
import random
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

__calls_user_code__ = True

PickledSpecs = Mapping[str, bytes]
"""Specs by id; each is pickled for itself, as one that cannot be read must not keep others from being used."""


def registered_here() -> PickledSpecs:
    """Return what this process has registered beyond Gymnasium's own ids."""
    return _pickled(tuple(name for name, spec in gymnasium.registry.items() if not _is_gymnasiums_own(spec)))


def call_with_ids(make: Callable[[], Any], ids: PickledSpecs) -> Any:
    """Call `make`; if it lacks an id, register those of `ids` that this process does not have, and call it again.

    They are not registered beforehand: a module that `make` imports, and that registers them itself, would warn of each.
    """
    positions = random.getstate(), np.random.get_state()  # noqa: NPY002  so that the second call draws what the first did
    try:
        return make()
    except gymnasium.error.UnregisteredEnv:
        missing = {name: spec for name, spec in ids.items() if name not in gymnasium.registry}
        if not missing:
            raise
    gymnasium.registry.update({name: pickle.loads(spec) for name, spec in missing.items()})
    random.setstate(positions[0])
    np.random.set_state(positions[1])  # noqa: NPY002
    with warnings.catch_warnings():
        # What it makes is in a package that may register its ids when it is imported, as it did in the caller.
        warnings.filterwarnings("ignore", ".*Overriding environment")
        return make()


def _is_gymnasiums_own(spec: EnvSpec) -> bool:
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.")


@lru_cache(maxsize=1)
def _pickled(names: tuple[str, ...]) -> PickledSpecs:
    found = {}
    for name in names:
        try:
            found[name] = cloudpickle.dumps(gymnasium.registry[name])
        except Exception:  # noqa: S112, BLE001  whatever cannot be pickled, its maker may never ask for
            continue
    return found
