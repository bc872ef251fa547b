"""What users were given stays as they have it, and what they write into it changes nothing else: on every backend."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import stretto
from stretto.envs import arrays
from stretto.envs.arrays import BUFFERS, MOST_BUFFERS
from stretto.testing import difference, sample_actions
from stretto.workers import handing_out
from stretto.workers.private_view import works_here
from tests.backends import every_backend
from tests.faults.killing import Killer
from tests.keeping import Keeps
from tests.worlds import Crowd, Drift, Frames, World, makes
from tests.worlds import Result as WorldResult

needs_linux = pytest.mark.skipif(not works_here(), reason="this system cannot tell which pages were written into")
MODES = pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)


@pytest.fixture
def all_are_large(monkeypatch):
    """Let arrays of any size be handed out, however much is written into them."""
    monkeypatch.setattr(handing_out, "HANDED_OUT_BYTES", 1)
    monkeypatch.setattr(handing_out, "_WRITTEN_SHARE", 1e9)


class InParts(World):
    """Observes a large part, a small one, and one without a fixed size."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            frame=spaces.Box(0, 255, (900, 700), np.uint8),
            place=spaces.Tuple([spaces.Box(-9, 9, (3,)), spaces.Discrete(100)]),
            text=spaces.Text(10),
        )

    def see(self) -> Any:
        frame = np.full((900, 700), self.steps, np.uint8)
        return {
            "frame": frame,
            "place": (np.full(3, self.steps % 9, np.float32), self.steps),
            "text": f"at {self.steps}",
        }

    def move(self, action: Any) -> WorldResult:
        return self.see(), float(action), self.steps == 7, False, {}


def _operations(envs: Any, seed: int, disabled: bool) -> Any:
    """Do all that gives observations, in an order drawn from the seed; yield each result, as whoever called has it."""
    draw = np.random.default_rng(seed)
    count = envs.num_envs
    yield envs.reset(seed=seed)[0]
    over = np.zeros(count, bool)
    for _ in range(40):
        actions = draw.integers(0, 4, count)
        match draw.choice(["step", "step", "step", "mask", "send", "apart", "reset"]):
            case "step" if not (disabled and over.any()):
                step = envs.step(actions)
                over = step.terminations | step.truncations
                yield step.observations
            case "send" if not (disabled and over.any()):
                some = draw.permutation(count)[: count - 1]
                envs.send(actions[some], some)
                result = envs.recv(ordered=True)
                over[result.ids] = result.terminations | result.truncations
                yield result.observations
            case "apart" if not (disabled and over.any()):
                envs.send(actions[:1], [0])
                others = np.arange(count) > 0
                fresh, _ = envs.reset(options={"reset_mask": others})
                yield {slot: _row(fresh, slot) for slot in range(1, count)}
                result = envs.recv()
                over[:] = False
                over[0] = result.terminations[0] or result.truncations[0]
                yield result.observations
            case "reset":
                over[:] = False
                yield envs.reset()[0]
            case _:
                mask = over | (draw.random(count) < 0.3)
                mask[0] |= not mask.any()
                over[:] = False
                yield envs.reset(options={"reset_mask": mask})[0]


def _row(batch: Any, slot: int) -> Any:
    if isinstance(batch, dict):
        return {key: _row(part, slot) for key, part in batch.items()}
    if isinstance(batch, tuple) and len(batch) != 3:
        return tuple(_row(part, slot) for part in batch)
    return batch[slot]


def check(
    world: Any, mode: AutoresetMode, options: dict[str, Any], seed: int, longest: int, kills: bool = False
) -> None:
    """Check what is held, and that all is as where nobody holds anything or writes into it."""
    alone = {"autoreset_mode": mode, "backend": "serial"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handing_out, "HANDED_OUT_BYTES", 1 << 40)
        with stretto.make_vec(world, 3, **alone) as envs:
            expected = [copy.deepcopy(one) for one in _operations(envs, seed, mode is AutoresetMode.DISABLED)]
    keeps = Keeps(seed, longest)
    with (
        stretto.make_vec(world, 3, autoreset_mode=mode, max_restarts=100, **options) as envs,
        Killer(envs, seed) as killer,
    ):
        for number, one in enumerate(_operations(envs, seed, mode is AutoresetMode.DISABLED)):
            found = difference(one, expected[number])
            assert found is None, f"operation {number}: {found}"
            keeps.take(one)
            if kills and number % 3 == 0:
                killer.strike_soon()
        assert envs.statistics().truncations == 0
    keeps.check()


@every_backend
@MODES
@pytest.mark.parametrize("longest", [2, 3 * MOST_BUFFERS])
def test_what_is_held_stays_and_what_is_written_into_it_changes_nothing_else(options, mode, longest, all_are_large):
    for world in (makes(Drift, 6), InParts):
        check(world, mode, options, seed=longest, longest=longest)


@pytest.mark.filterwarnings("ignore::stretto.FewerWorkers")  # one is killed while it is moved out
@pytest.mark.parametrize("isolate", [False, True])
@MODES
def test_it_stays_while_workers_are_killed(mode, isolate, all_are_large):
    options = {"backend": "process", "workers": 2, "isolate": isolate}
    check(makes(Drift, 6), mode, options, seed=int(isolate), longest=4, kills=True)


@every_backend
def test_large_frames_of_an_ordinary_loop_are_right_and_stay(options):
    check(Frames, AutoresetMode.NEXT_STEP, options, seed=1, longest=3)


@every_backend
def test_what_is_held_stays_when_the_environments_are_closed(options):
    with stretto.make_vec(Frames, 2, **options) as envs:
        envs.reset(seed=0)
        rows = [envs.step([0, 1]).observations[1] for _ in range(3)]
    assert [int(row[0, 0]) for row in rows] == [1, 2, 3]
    assert all(np.all(row == row[0, 0]) for row in rows)


@every_backend
def test_it_is_used_by_agent_too(options, all_are_large):
    with (
        stretto.make_vec(Crowd, 3, **options) as envs,
        stretto.make_vec(Crowd, 3, copy=False, backend="serial") as plain,
    ):
        keeps = Keeps(0, 4)
        given, expected = envs.reset(seed=0)[0], plain.reset(seed=0)[0]
        for number, actions in enumerate(sample_actions(envs, 30, 0)):
            found = difference(dict(given), dict(expected))
            assert found is None, f"step {number}: {found}"
            keeps.take(dict(given))
            given, expected = envs.step(actions)[0], plain.step(actions)[0]


# ---- which of them hand out ----


@needs_linux
@pytest.mark.parametrize(
    ("options", "hands_out"),
    [
        ({"backend": "serial"}, True),
        ({"backend": "process", "workers": 2}, True),
        ({"backend": "thread", "workers": 2}, False),  # one that hangs cannot be ended
        ({"backend": "process", "workers": 2, "transport": "message"}, False),
        ({"backend": "serial", "copy": False}, False),
    ],
    ids=str,
)
def test_large_arrays_are_handed_out_where_nobody_else_can_write_into_them(options, hands_out):
    with stretto.make_vec(Frames, 2, **options) as envs:
        assert (envs.engine.state.handing_out is not None) == hands_out
        envs.reset(seed=0)
        used = set()
        for _ in range(8):
            observations = envs.step([0, 1]).observations
            used.add(observations.ctypes.data)
        assert len(envs.engine.state.buffers.rewards) == (MOST_BUFFERS if hands_out else BUFFERS)
        assert len(used) == 2 or not hands_out


def test_small_arrays_are_copied():
    with stretto.make_vec("CartPole-v1", 2, backend="serial") as envs:
        assert envs.engine.state.handing_out is None


def _no_more_maps(*_, **__):
    raise OSError("Cannot allocate memory")


@pytest.mark.parametrize("name", ["works_here", "HandingOut"])
def test_where_the_system_does_not_help_all_is_copied(name, monkeypatch):
    monkeypatch.setattr(arrays, name, _no_more_maps if name == "HandingOut" else lambda: False)
    with stretto.make_vec(Frames, 2, backend="serial") as envs:
        assert envs.engine.state.handing_out is None
        envs.reset(seed=0)
        given = (envs.step([0, 1]).observations for _ in range(12))
        assert all(np.array_equal(one, copied) for one, copied in [(one, one.copy()) for one in given])
