"""How much is kept of what was done to worlds."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from stretto.envs.messages import Origin, ResetSlot
from stretto.envs.restoring import history
from stretto.envs.restoring.history import History
from stretto.spaces import SpaceLayout


@pytest.mark.parametrize(("most_bytes", "kept"), [(1 << 30, 5_000), (80_000, 1_000)])
def test_steps_behind_the_nearest_point_are_few_enough_to_fit(
    most_bytes: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "FALLBACK_BYTES", most_bytes)
    found = History(1, SpaceLayout(spaces.Discrete(3)), limit=1 << 30)
    found.reset(ResetSlot(0, 7, None))
    for step in range(20_480):
        if step % 100 == 0:
            found.recorded(Origin(0, step, None, None, None, automatic=True), ResetSlot(0, None, None))
        found.stepped([np.zeros((1, 10))], None)  # 80 bytes
    assert len(found._entries.items) == kept
