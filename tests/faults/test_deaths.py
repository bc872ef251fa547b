"""A worker may die at any moment; by default nobody sees more of it than a counter."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode

import stretto
from stretto.testing import play, sample_actions
from stretto.workers.launcher import launcher
from tests.faults.worlds import Mortal, Schedule
from tests.worlds import Crasher, Drift, TaskWorld

pytestmark = pytest.mark.timeout(60)

STEPS = 24
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]

transports = pytest.mark.parametrize("transport", ["shared", "message"])
modes = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)


def mortals(folder: Path, slot: int, moments: tuple[str, ...], how: str = "sigkill", count: int = 4) -> list[Any]:
    """Return makers of `count` worlds of which one, in `slot`, ends its process at `moments`."""
    empty = folder / "empty"
    folder.mkdir(exist_ok=True)
    empty.mkdir(exist_ok=True)
    (folder / "passed").mkdir(exist_ok=True)
    makers = [partial(Mortal, Schedule(empty, ()), how) for _ in range(count)]
    makers[slot] = partial(Mortal, Schedule(folder / "passed", moments), how)
    return makers


def undisturbed(folder: Path, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any) -> Any:
    """Return what the same worlds give where nobody dies, and the actions."""
    with stretto.make_vec(mortals(folder / "none", 0, ()), 4, backend="serial", autoreset_mode=mode, **options) as envs:
        actions = sample_actions(envs, STEPS)
        return play(envs, actions, 3), actions


@pytest.mark.parametrize("how", ["sigkill", "segfault", "exit"])
@pytest.mark.parametrize("moment", ["build", "reset 1", "step 5", "write 5", "reset 2"])
def test_a_worker_that_dies_at_any_moment_is_recovered_and_nothing_differs(moment, how, tmp_path):
    expected, actions = undisturbed(tmp_path)
    makers = mortals(tmp_path / "some", 2, (moment,), how)
    with stretto.make_vec(makers, 4, backend="process", workers=2, isolate=True, checks="off") as envs:
        play(envs, actions, 3).check_same(expected, f"a run with a death at {moment} and one without")
        assert envs.statistics().truncations == 0
        assert envs.statistics().restarts == 1


@transports
@modes
@pytest.mark.parametrize("moment", ["step 7", "reset 2"])
def test_in_every_mode_and_transport(mode, transport, moment, tmp_path):
    expected, actions = undisturbed(tmp_path, mode)
    makers = mortals(tmp_path / "some", 1, (moment, "step 11"))
    layout = {"backend": "process", "workers": 2, "isolate": True, "transport": transport}
    with stretto.make_vec(makers, 4, autoreset_mode=mode, **layout) as envs:
        play(envs, actions, 3).check_same(expected, "a run with two deaths and one without")
        assert envs.statistics().restarts == 2


def test_one_that_dies_while_its_infos_are_sent_is_recovered(tmp_path):
    makers = mortals(tmp_path / "some", 2, ("send 5",))
    with stretto.make_vec(makers, 4, backend="process", workers=2, isolate=True) as envs:
        actions = sample_actions(envs, STEPS)
        run = play(envs, actions, 3)
        assert [moment[4]["late"][2] for moment in run.moments[1:] if "late" in moment[4]] == [7]
        assert envs.statistics().restarts == 1


def test_the_share_of_the_caller_goes_on_while_a_worker_is_recovered(tmp_path):
    expected, actions = undisturbed(tmp_path)
    makers = mortals(tmp_path / "some", 0, ("step 9",))
    with stretto.make_vec(makers, 4, backend="process", workers=2) as envs:
        play(envs, actions, 3).check_same(expected, "a run with a death and one without")
        assert envs.statistics().restarts == 1


def test_one_that_dies_again_while_it_is_recovered_is_recovered_again(tmp_path):
    expected, actions = undisturbed(tmp_path)
    # The second and third die while they replay, the fourth before it has even begun.
    makers = mortals(tmp_path / "some", 1, ("step 9", "step 2", "step 8", "build"))
    layout = {"backend": "process", "workers": 2, "isolate": True}
    with stretto.make_vec(makers, 4, max_restarts=4, **layout) as envs:
        play(envs, actions, 3).check_same(expected, "a run with four deaths and one without")
        assert envs.statistics().restarts == 4


def test_one_that_dies_while_it_is_closed_has_nothing_left_to_lose(tmp_path):
    makers = mortals(tmp_path / "some", 1, ("close",))
    envs = stretto.make_vec(makers, 4, backend="process", workers=2, isolate=True)
    envs.reset(seed=3)
    envs.close()
    assert len(list((tmp_path / "some" / "passed").iterdir())) == 1


@transports
def test_the_launcher_two_workers_or_both_may_die_at_once(transport, tmp_path):
    expected, actions = undisturbed(tmp_path)
    makers = mortals(tmp_path / "some", 0, ())
    layout = {"backend": "process", "workers": 3, "isolate": True, "transport": transport}
    with stretto.make_vec(makers, 4, **layout) as envs:

        def kill(number: int) -> None:
            workers = envs.worker_pids
            match number:
                case 4:
                    victims = [launcher().pid]
                case 8:
                    victims = workers[:2]
                case 12:
                    victims = workers
                case 16:
                    victims = [workers[0], launcher().pid]
                case 20:
                    victims = [launcher().pid, workers[1]]
                case _:
                    victims = []
            # A launcher takes its workers with it, but not at once: without a look, they may die in a later massacre.
            doomed = workers if launcher().pid in victims else victims
            dying = [psutil.Process(pid) for pid in doomed]
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            assert not psutil.wait_procs(dying, timeout=20)[1]

        play(envs, actions, 3, before_step=kill).check_same(expected, "a run with massacres and one without")
        assert envs.statistics().restarts == 3 + 2 + 3 + 3 + 3


def test_a_launcher_that_dies_while_it_starts_workers_is_replaced(tmp_path):
    launcher().close()
    killer = threading.Thread(target=_kill_launcher_soon)
    killer.start()
    with stretto.make_vec(Drift, 4, backend="process", workers=4, isolate=True) as envs:
        envs.reset(seed=0)
        assert len(set(envs.worker_pids)) == 4
    killer.join()


def _kill_launcher_soon() -> None:
    while launcher().pid is None:
        threading.Event().wait(0.001)
    os.kill(launcher().pid, signal.SIGKILL)


def test_a_worker_that_dies_between_steps_is_recovered_by_the_next(tmp_path):
    with stretto.make_vec(Drift, 2, backend="process", workers=2, isolate=True) as envs:
        envs.reset(seed=0)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        envs.step(np.zeros(2, int))
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        assert envs.get_attr("steps") == (1, 1)
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        assert envs.map(lambda env: env.unwrapped.steps) == (1, 1)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        envs.reset()
        assert envs.statistics().restarts == 4


@transports
def test_one_that_dies_after_its_answer_while_others_are_waited_for_is_recovered_to_it(transport):
    """It has done the step that the others are at, and must not do it again, nor miss it."""

    class Staggered(TaskWorld):
        def __init__(self, seconds: float) -> None:
            super().__init__(length=2)
            self.seconds = seconds

        def move(self, action: Any) -> Any:
            time.sleep(self.seconds)
            return super().move(action)

    def task(slot: int, episode: int, stream: np.random.Generator) -> float:
        return 10 * slot + episode + stream.random()

    makers = [partial(Staggered, 0.0), partial(Staggered, 0.1)]
    with stretto.make_vec(makers, 2, backend="serial", tasks=task) as envs:
        actions = sample_actions(envs, 9)
        expected = play(envs, actions, 3)
    layout = {"backend": "process", "workers": 2, "isolate": True, "transport": transport}
    with stretto.make_vec(makers, 2, tasks=task, **layout) as envs:
        timers: list[threading.Timer] = []

        def kill_soon(_: int) -> None:
            timers.append(threading.Timer(0.05, kill))
            timers[-1].start()

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):  # the last one has hit it
                os.kill(envs.worker_pids[0], signal.SIGKILL)

        play(envs, actions, 3, before_step=kill_soon).check_same(expected, "a run with deaths and one without")
        for timer in timers:
            timer.join()
        assert envs.statistics().truncations == 0


# ---- giving up ----


@pytest.mark.parametrize(("at_step", "doing"), [(-1, "building"), (0, "resetting"), (3, "stepping")])
def test_a_world_that_dies_every_time_is_given_up_with_where_and_how_often(at_step, doing):
    makers = [Drift, partial(Crasher, at_step), Drift]
    layout = {"backend": "process", "workers": 2, "isolate": True, "max_restarts": 2}
    with pytest.raises(stretto.WorkerDied) as caught:
        _play_three(makers, layout)
    assert "3 times in a row" in str(caught.value)
    assert "SIGKILL" in str(caught.value)
    place = caught.value.place
    assert (place.doing, place.slot, place.worker) == (doing, 1, 0)
    assert place.seed == (None if at_step < 0 else 8)
    assert place.episode == (0 if at_step == 3 else None)
    assert caught.value.restarts == 2


def _play_three(makers: list[Any], layout: dict[str, Any]) -> None:
    with stretto.make_vec(makers, 3, **layout) as envs:
        envs.reset(seed=7)
        for _ in range(3):
            envs.step(np.zeros(3, int))


def test_after_giving_up_it_can_be_reset():
    layout = {"backend": "process", "workers": 2, "isolate": True, "max_restarts": 1}
    with stretto.make_vec([Drift, partial(Crasher, 3), Drift], 3, **layout) as envs:
        for _ in range(2):
            envs.reset(seed=7)
            envs.step(np.zeros(3, int))
            envs.step(np.zeros(3, int))
            with pytest.raises(stretto.WorkerDied):
                envs.step(np.zeros(3, int))
            with pytest.raises(stretto.ResetNeeded):
                envs.step(np.zeros(3, int))
            with pytest.raises(stretto.ResetNeeded):
                envs.get_attr("steps")
            with pytest.raises(stretto.ResetNeeded):
                envs.reset(options={"reset_mask": np.array([True, False, True])})
        envs.reset(seed=7)
        assert envs.get_attr("steps") == (0, 0, 0)


def test_a_segfault_is_told_with_the_stack_of_the_crash(tmp_path):
    makers = mortals(tmp_path / "some", 1, ("step 2",), "segfault")
    layout = {"backend": "process", "workers": 2, "isolate": True, "on_crash": "raise"}
    with stretto.make_vec(makers, 4, **layout) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(4, int))
        with pytest.raises(stretto.WorkerDied) as caught:
            envs.step(np.zeros(4, int))
    assert "SIGSEGV" in str(caught.value)
    assert "in end_process" in str(caught.value)


# ---- on_crash="raise" ----


def test_raise_tells_the_first_death_and_the_environment_can_be_reset():
    layout = {"backend": "process", "workers": 2, "isolate": True, "on_crash": "raise"}
    with stretto.make_vec(Drift, 4, **layout) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(4, int))
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        with pytest.raises(stretto.WorkerDied, match=r"worker 1 died while stepping .*signal 9"):
            envs.step(np.zeros(4, int))
        first, _ = envs.reset(seed=0)
        again, _ = envs.reset(seed=0)
        assert first.tobytes() == again.tobytes()
        assert envs.statistics().restarts == 0


def test_raise_also_tells_a_death_that_happened_while_others_were_waited_for():
    layout = {"backend": "process", "workers": 2, "isolate": True, "on_crash": "raise"}
    with stretto.make_vec(Drift, 2, **layout) as envs:
        envs.reset(seed=0)
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        envs.send(np.zeros(1, int), [0])
        assert envs.recv().ids.tolist() == [0]
        envs.send(np.zeros(1, int), [1])
        with pytest.raises(stretto.WorkerDied):
            envs.recv()
        envs.reset(seed=0)
        envs.step(np.zeros(2, int))


# ---- on_crash="truncate" ----


@transports
@modes
def test_truncate_ends_the_episodes_of_the_worker_and_says_so(mode, transport):
    layout = {"backend": "process", "workers": 2, "isolate": True, "on_crash": "truncate", "transport": transport}
    with stretto.make_vec(partial(Drift, 1000), 4, autoreset_mode=mode, **layout) as envs:
        envs.reset(seed=0)
        before = envs.step(np.zeros(4, int))
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        with pytest.warns(stretto.SlotTruncated) as warned:
            result = envs.step(np.zeros(4, int))
        assert [f"slot {slot} was truncated: worker 0 died" in str(warned[slot].message) for slot in (0, 1)]
        assert len(warned) == 2
        assert result.truncations.tolist() == [True, True, False, False]
        assert not result.terminations.any()
        assert result.rewards[:2].tolist() == [0.0, 0.0]
        # With same-step autoreset the row is already of the next episode, and this is in the final info.
        crash = result.infos["final_info"] if mode is AutoresetMode.SAME_STEP else result.infos
        assert crash["_crash"].tolist() == [True, True, False, False]
        assert "SIGKILL" in crash["crash"][0]
        if mode is AutoresetMode.SAME_STEP:
            last = np.stack(result.infos["final_obs"][:2])
        else:
            last = result.observations[:2]
        assert last.tobytes() == before.observations[:2].tobytes()
        assert envs.statistics().truncations == 2
        assert envs.statistics().restarts == 1
        _goes_on_with_the_next_episode(envs, mode)


def _goes_on_with_the_next_episode(envs: Any, mode: AutoresetMode) -> None:
    lost = np.array([True, True, False, False])
    if mode is AutoresetMode.NEXT_STEP:
        assert envs.step(np.zeros(4, int)).rewards[:2].tolist() == [0.0, 0.0]
    if mode is AutoresetMode.DISABLED:
        with pytest.raises(stretto.ResetNeeded):
            envs.step(np.zeros(4, int))
        envs.reset(seed=1)
        lost[:] = True
    steps = np.array(envs.get_attr("steps"))
    assert (steps == 0).tolist() == lost.tolist()
    envs.step(np.zeros(4, int))
    assert (np.array(envs.get_attr("steps")) == steps + 1).all()


def test_truncate_leaves_an_episode_alone_that_was_over_already():
    layout = {"backend": "process", "workers": 2, "isolate": True, "on_crash": "truncate"}
    with stretto.make_vec(partial(Drift, 1), 2, **layout) as envs:  # every episode has one step
        envs.reset(seed=0)
        assert envs.step(np.zeros(2, int)).terminations.all()
        for pid in envs.worker_pids:
            os.kill(pid, signal.SIGKILL)
        result = envs.step(np.zeros(2, int))  # warnings are errors
        assert not (result.terminations | result.truncations).any()
        assert envs.statistics().truncations == 0


def test_truncate_in_the_same_step_does_not_take_a_new_episode_for_one_that_is_over():
    layout = {"backend": "process", "workers": 2, "isolate": True, "on_crash": "truncate"}
    with stretto.make_vec(partial(Drift, 1), 2, autoreset_mode="SameStep", **layout) as envs:
        envs.reset(seed=0)
        assert envs.step(np.zeros(2, int)).terminations.all()
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        with pytest.warns(stretto.SlotTruncated, match="slot 1"):
            result = envs.step(np.zeros(2, int))
        assert result.truncations.tolist() == [False, True]
        assert "crash" in result.infos["final_info"]


@pytest.mark.parametrize("tasks", [None, [1.0, 2.0, 3.0]])
def test_truncate_begins_an_episode_that_was_just_being_reset(tasks, tmp_path):
    makers = mortals(tmp_path / "some", 1, ("reset 2",))
    layout = {"backend": "process", "workers": 2, "isolate": True, "on_crash": "truncate", "tasks": tasks}
    with stretto.make_vec(makers, 4, **layout) as envs:
        envs.reset(seed=0)
        for _ in range(2):
            envs.step(np.zeros(4, int))
        envs.reset()  # nothing is lost, so there is no warning
        assert envs.statistics().restarts == 1
        assert envs.statistics().truncations == 0
        envs.step(np.zeros(4, int))


# ---- when nothing can be recovered ----


def test_a_death_is_noticed_at_once():
    layout = {"backend": "process", "workers": 2, "isolate": True, "on_crash": "raise"}
    with stretto.make_vec(Drift, 2, **layout) as envs:
        envs.reset(seed=0)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(stretto.WorkerDied):
            envs.step(np.zeros(2, int))
        assert time.monotonic() - began < 2.0  # benchmarks/kills.py measures it; this is about waiting for a deadline
