"""Workers may die or hang at any moment; by default nobody sees more of it than a counter.

All of this runs on workers that only pretend to. What only processes show is in tests/faults.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import stretto
from stretto.envs.messages import Attach, Describe, Reset, Restore, Step
from stretto.testing import Run, play, sample_actions
from stretto.workers.base import Start, Stop
from tests.faults.worlds import Schedule, Scheduled
from tests.workers.fake import (
    AFTER,
    BEFORE,
    UNCOUNTED,
    UNSENT,
    Death,
    Delay,
    Hang,
    Script,
    die,
    hang,
    kill,
    kill_all,
    make_fake_vec,
)
from tests.worlds import CountTo, Drift, TaskWorld

STEPS = 18
LIMITS = {"step_timeout": 5.0, "reset_timeout": 6.0, "start_timeout": 7.0}

transports = pytest.mark.parametrize("shares_memory", [True, False], ids=["shared", "message"])
modes = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)


def scheduled(
    folder: Path, moments: tuple[str, ...], act: Any = die, slot: int = 1, count: int = 4, length: int = 6
) -> list[Any]:
    """Return makers of `count` worlds of which one, in `slot`, does `act()` at `moments`."""
    (folder / "passed").mkdir(parents=True, exist_ok=True)
    makers = [partial(Scheduled, Schedule("", ()), act, length) for _ in range(count)]
    makers[slot] = partial(Scheduled, Schedule(folder / "passed", moments), act, length)
    return makers


QUIET = [partial(Scheduled, Schedule("", ()), die) for _ in range(4)]
"""The same worlds, to which nothing happens."""


@cache
def undisturbed(mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> Any:
    """Return what those give, and the actions."""
    with stretto.make_vec(QUIET, 4, backend="serial", autoreset_mode=mode) as envs:
        actions = sample_actions(envs, STEPS)
        return play(envs, actions, 3), actions


def step_kind(shares_memory: bool) -> type:
    """Return what asks a worker to step: a signal or a message."""
    return int if shares_memory else Step


def zeros(envs: Any) -> Any:
    return np.zeros(envs.num_envs, int)


# ---- on_crash="replay" ----


@transports
@pytest.mark.parametrize("act", [die, hang])
@pytest.mark.parametrize("moment", ["build", "reset 1", "step 5", "write 5", "reset 2"])
def test_one_that_is_lost_at_any_moment_is_recovered_and_nothing_differs(moment, act, shares_memory, tmp_path):
    expected, actions = undisturbed()
    makers = scheduled(tmp_path, (moment,), act, slot=2)
    with make_fake_vec(makers, 4, shares_memory=shares_memory, checks="off", **LIMITS) as envs:
        play(envs, actions, 3).check_same(expected, f"a run with a loss at {moment} and one without")
        assert envs.statistics().truncations == 0
        assert envs.statistics().restarts == 1


@transports
@modes
@pytest.mark.parametrize("moment", ["step 7", "reset 2"])
def test_in_every_mode_and_transport(mode, shares_memory, moment, tmp_path):
    expected, actions = undisturbed(mode)
    makers = scheduled(tmp_path, (moment, "step 11"))
    with make_fake_vec(makers, 4, shares_memory=shares_memory, autoreset_mode=mode) as envs:
        play(envs, actions, 3).check_same(expected, "a run with two deaths and one without")
        assert envs.statistics().restarts == 2


@transports
@pytest.mark.parametrize("fault", [Death, Hang])
@pytest.mark.parametrize("when", [BEFORE, 1, 2, UNSENT, UNCOUNTED])
@pytest.mark.parametrize("kind", [Start, Describe, Attach, Reset, Step], ids=lambda kind: kind.__name__)
def test_one_that_is_lost_at_any_request_is_recovered_and_nothing_differs(kind, when, fault, shares_memory):
    expected, actions = undisturbed()
    nth = 5 if kind is Step else 1
    at = step_kind(shares_memory) if kind is Step else kind
    script = Script(fault(seat=1, kind=at, nth=nth, when=when))
    with make_fake_vec(QUIET, 4, script, shares_memory=shares_memory, **LIMITS) as envs:
        play(envs, actions[:8], 3).check_same(Run(expected.moments[:9]), "a run with a loss and one without")
        at_no_slot = not isinstance(when, str) and kind in (Describe, Attach)
        assert envs.statistics().restarts == (0 if at_no_slot else 1)
        assert bool(envs.statistics().replayed_steps) == (kind is Step)


def test_one_that_dies_while_its_infos_are_sent_is_recovered(tmp_path):
    makers = scheduled(tmp_path, ("send 5",), slot=2)
    with make_fake_vec(makers, 4) as envs:
        run = play(envs, sample_actions(envs, STEPS), 3)
        assert [moment[4]["late"][2] for moment in run.moments[1:] if "late" in moment[4]] == [7]
        assert envs.statistics().restarts == 1


def test_the_share_of_the_caller_goes_on_while_a_worker_is_recovered(tmp_path):
    expected, actions = undisturbed()
    makers = scheduled(tmp_path, ("step 9",), slot=0)
    with make_fake_vec(makers, 4, isolate=False) as envs:
        assert len(envs.worker_pids) == 1
        play(envs, actions, 3).check_same(expected, "a run with a death and one without")
        assert envs.statistics().restarts == 1


def test_one_that_dies_again_while_it_is_recovered_is_recovered_again(tmp_path):
    expected, actions = undisturbed()
    # The second and third die while they replay, the fourth before it has even begun.
    makers = scheduled(tmp_path, ("step 9", "step 2", "step 8", "build"))
    with make_fake_vec(makers, 4, max_restarts=4) as envs:
        play(envs, actions, 3).check_same(expected, "a run with four deaths and one without")
        assert envs.statistics().restarts == 4


@transports
def test_several_may_die_at_once(shares_memory):
    expected, actions = undisturbed()
    victims = {5: slice(0, 2), 10: slice(None), 11: slice(None), 15: slice(2, None)}
    with make_fake_vec(QUIET, 4, workers=3, shares_memory=shares_memory) as envs:

        def kill_some(number: int) -> None:
            for pid in envs.worker_pids[victims.get(number, slice(0))]:
                kill(pid)

        play(envs, actions, 3, before_step=kill_some).check_same(expected, "a run with massacres and one without")
        assert envs.statistics().restarts == 2 + 3 + 3 + 1


@transports
def test_one_that_dies_between_steps_is_recovered_by_whatever_is_asked_next(shares_memory):
    with make_fake_vec(Drift, 2, shares_memory=shares_memory) as envs:
        envs.reset(seed=0)
        kill(envs.worker_pids[0])
        envs.step(zeros(envs))
        kill(envs.worker_pids[1])
        assert envs.get_attr("steps") == (1, 1)
        kill(envs.worker_pids[1])
        assert envs.map(lambda env: env.unwrapped.steps) == (1, 1)
        kill(envs.worker_pids[0])
        envs.reset()
        assert envs.statistics().restarts == 4


@transports
@pytest.mark.parametrize("tasks", [None, lambda slot, episode, stream: 10 * slot + episode + stream.random()])
def test_one_that_dies_after_its_answer_while_others_are_waited_for_is_recovered_to_it(tasks, shares_memory):
    """It has done the step that the others are at, and must not do it again, nor miss it."""
    count = 9
    with stretto.make_vec(partial(TaskWorld, 2), 2, backend="serial", tasks=tasks) as envs:
        actions = sample_actions(envs, count)
        expected = play(envs, actions, 3)
    kind = step_kind(shares_memory)
    deaths = [Death(kind=kind, nth=n, when=AFTER) for n in range(1, count + 1)]
    delays = [Delay(seat=1, kind=kind, nth=n, seconds=1.0) for n in range(1, count + 1)]
    script = Script(*deaths, *delays)
    with make_fake_vec(partial(TaskWorld, 2), 2, script, shares_memory=shares_memory, tasks=tasks) as envs:
        play(envs, actions, 3).check_same(expected, "a run with deaths and one without")
        assert len(script.struck) == 2 * count
        assert envs.statistics().truncations == 0
        assert envs.statistics().restarts >= count - 1


# ---- giving up ----


MOMENTS = [("build", "building"), ("reset 1", "resetting"), ("step 3", "stepping")]


@pytest.mark.parametrize(("moment", "doing"), MOMENTS)
def test_a_world_that_dies_every_time_is_given_up_with_where_and_how_often(moment, doing, tmp_path):
    makers = scheduled(tmp_path, (moment,) * 9, count=3, length=1000)
    with pytest.raises(stretto.WorkerDied) as caught:
        _play_three(makers, max_restarts=2)
    assert "3 times in a row" in str(caught.value)
    assert "SIGKILL" in str(caught.value)
    place = caught.value.place
    assert (place.doing, place.slot, place.worker) == (doing, 1, 0)
    assert place.seed == (None if doing == "building" else 8)
    assert place.episode == (0 if doing == "stepping" else None)
    assert caught.value.restarts == 2
    assert len(list((tmp_path / "passed").iterdir())) == 3


def _play_three(makers: list[Any], **options: Any) -> None:
    with make_fake_vec(makers, 3, **options) as envs:
        envs.reset(seed=7)
        for _ in range(3):
            envs.step(zeros(envs))


def test_a_world_that_dies_now_and_then_is_never_given_up(tmp_path):
    makers = scheduled(tmp_path, tuple(f"step {n}" for n in range(2, 10)), length=1000)
    with make_fake_vec(makers, 4, max_restarts=1) as envs:
        envs.reset(seed=7)
        for _ in range(10):
            envs.step(zeros(envs))
        assert envs.statistics().restarts == 8


def test_after_giving_up_it_can_be_reset(tmp_path):
    makers = scheduled(tmp_path, ("step 3",) * 4, count=3, length=1000)
    with make_fake_vec(makers, 3, max_restarts=1) as envs:
        for _ in range(2):
            envs.reset(seed=7)
            envs.step(zeros(envs))
            envs.step(zeros(envs))
            with pytest.raises(stretto.WorkerDied):
                envs.step(zeros(envs))
            with pytest.raises(stretto.ResetNeeded):
                envs.step(zeros(envs))
            with pytest.raises(stretto.ResetNeeded):
                envs.get_attr("steps")
            with pytest.raises(stretto.ResetNeeded):
                envs.reset(options={"reset_mask": np.array([True, False, True])})
        envs.reset(seed=7)
        assert envs.get_attr("steps") == (0, 0, 0)


# ---- on_crash="raise" ----


def test_raise_tells_the_first_death_and_the_environment_can_be_reset():
    with make_fake_vec(Drift, 4, on_crash="raise") as envs:
        envs.reset(seed=0)
        envs.step(zeros(envs))
        kill(envs.worker_pids[1])
        with pytest.raises(stretto.WorkerDied, match=r"worker 1 died while stepping .*signal 9"):
            envs.step(zeros(envs))
        first, _ = envs.reset(seed=0)
        again, _ = envs.reset(seed=0)
        assert first.tobytes() == again.tobytes()
        assert envs.statistics().restarts == 0


@pytest.mark.parametrize("kind", [Start, Describe, Attach], ids=lambda kind: kind.__name__)
def test_raise_tells_a_death_while_the_worlds_are_built(kind):
    for fault, error in ((Death, stretto.WorkerDied), (Hang, stretto.WorldHung)):
        with pytest.raises(error):
            make_fake_vec(Drift, 4, Script(fault(kind=kind)), on_crash="raise", **LIMITS)


def test_raise_also_tells_a_death_that_happened_while_others_were_waited_for():
    with make_fake_vec(Drift, 2, on_crash="raise") as envs:
        envs.reset(seed=0)
        kill(envs.worker_pids[1])
        envs.send(np.zeros(1, int), [0])
        assert envs.recv().ids.tolist() == [0]
        envs.send(np.zeros(1, int), [1])
        with pytest.raises(stretto.WorkerDied):
            envs.recv()
        envs.reset(seed=0)
        envs.step(zeros(envs))


# ---- on_crash="truncate" ----


@transports
@modes
def test_truncate_ends_the_episodes_of_the_worker_and_says_so(mode, shares_memory):
    options = {"on_crash": "truncate", "autoreset_mode": mode, "shares_memory": shares_memory}
    with make_fake_vec(partial(Drift, 1000), 4, **options) as envs:
        envs.reset(seed=0)
        before = envs.step(zeros(envs))
        kill(envs.worker_pids[0])
        with pytest.warns(stretto.SlotTruncated) as warned:
            result = envs.step(zeros(envs))
        for slot, warning in enumerate(warned):
            assert f"slot {slot} was truncated: worker 0 died" in str(warning.message)
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
        assert envs.step(zeros(envs)).rewards[:2].tolist() == [0.0, 0.0]
    if mode is AutoresetMode.DISABLED:
        with pytest.raises(stretto.ResetNeeded):
            envs.step(zeros(envs))
        envs.reset(seed=1)
        lost[:] = True
    steps = np.array(envs.get_attr("steps"))
    assert (steps == 0).tolist() == lost.tolist()
    envs.step(zeros(envs))
    assert (np.array(envs.get_attr("steps")) == steps + 1).all()


def test_truncate_leaves_an_episode_alone_that_was_over_already():
    with make_fake_vec(partial(Drift, 1), 2, on_crash="truncate") as envs:  # every episode has one step
        envs.reset(seed=0)
        assert envs.step(zeros(envs)).terminations.all()
        kill_all(envs)
        result = envs.step(zeros(envs))  # warnings are errors
        assert not (result.terminations | result.truncations).any()
        assert envs.statistics().truncations == 0


def test_truncate_in_the_same_step_does_not_take_a_new_episode_for_one_that_is_over():
    with make_fake_vec(partial(Drift, 1), 2, on_crash="truncate", autoreset_mode="SameStep") as envs:
        envs.reset(seed=0)
        assert envs.step(zeros(envs)).terminations.all()
        kill(envs.worker_pids[1])
        with pytest.warns(stretto.SlotTruncated, match="slot 1"):
            result = envs.step(zeros(envs))
        assert result.truncations.tolist() == [False, True]
        assert "crash" in result.infos["final_info"]


@pytest.mark.parametrize("tasks", [None, [1.0, 2.0, 3.0]])
def test_truncate_begins_an_episode_that_was_just_being_reset(tasks, tmp_path):
    makers = scheduled(tmp_path, ("reset 2",))
    with make_fake_vec(makers, 4, on_crash="truncate", tasks=tasks) as envs:
        envs.reset(seed=0)
        for _ in range(2):
            envs.step(zeros(envs))
        envs.reset()  # nothing is lost, so there is no warning
        assert envs.statistics().restarts == 1
        assert envs.statistics().truncations == 0
        envs.step(zeros(envs))


@modes
def test_truncate_keeps_the_tasks_of_the_episodes_that_follow_and_what_was_set(mode):
    def task(slot: int, episode: int, stream: np.random.Generator) -> float:
        return 100 * slot + episode

    with make_fake_vec(partial(TaskWorld, 1000), 2, on_crash="truncate", tasks=task, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        envs.set_attr("length", [7, 8])
        envs.step(zeros(envs))
        for episode in (1, 2):
            kill(envs.worker_pids[1])
            with pytest.warns(stretto.SlotTruncated, match="slot 1"):
                result = envs.step(zeros(envs))
            if mode is AutoresetMode.NEXT_STEP:
                result = envs.step(zeros(envs))
            seen = result.observations
            if mode is AutoresetMode.DISABLED:
                seen, _ = envs.reset(options={"reset_mask": np.array([False, True])})
            assert seen[1].tolist() == [0, 100 + episode, -1]
            assert seen[0, 1] == 0
            assert envs.get_attr("length") == (7, 8)


# ---- hangs ----


@transports
def test_one_that_hangs_again_is_told_once_with_its_stack_and_can_be_reset(shares_memory, tmp_path):
    makers = scheduled(tmp_path, ("step 4", "step 4"), hang, length=1000)
    with make_fake_vec(makers, 4, shares_memory=shares_memory, **LIMITS) as envs:
        envs.reset(seed=3)
        for _ in range(3):
            envs.step(zeros(envs))
        with pytest.raises(stretto.WorldHung, match=r"no answer for 5 s while stepping \(slot 1") as caught:
            envs.step(zeros(envs))
        assert "in hang" in caught.value.stack
        assert str(caught.value).count("in hang") == 1
        place = caught.value.place
        assert (place.doing, place.slot, place.worker, place.seed, place.episode) == ("stepping", 1, 0, 4, 0)
        envs.reset(seed=3)
        envs.step(zeros(envs))
        assert envs.statistics().restarts == 1


def test_one_that_hangs_at_two_steps_is_replaced_twice(tmp_path):
    makers = scheduled(tmp_path, ("step 4", "step 5"), hang, length=1000)
    with make_fake_vec(makers, 4, **LIMITS) as envs:
        envs.reset(seed=3)
        for _ in range(8):
            envs.step(zeros(envs))
        assert envs.statistics().restarts == 2


def test_one_that_hangs_while_it_is_built_is_told_with_its_stack(tmp_path):
    makers = scheduled(tmp_path, ("build", "build"), hang)
    with pytest.raises(stretto.WorldHung, match=r"no answer for 7 s while building \(slot 1") as caught:
        make_fake_vec(makers, 4, **LIMITS)
    assert "in hang" in caught.value.stack


def test_one_that_hangs_while_it_is_replayed_counts_as_the_same_hang(tmp_path):
    makers = scheduled(tmp_path, ("step 4", "step 2"), hang, length=1000)
    with make_fake_vec(makers, 4, **LIMITS) as envs:
        envs.reset(seed=3)
        for _ in range(3):
            envs.step(zeros(envs))
        with pytest.raises(stretto.WorldHung, match=r"while replaying \(slot 1"):
            envs.step(zeros(envs))


def test_one_that_hangs_or_dies_while_it_is_closed(tmp_path):
    for act in (hang, die):
        envs = make_fake_vec(scheduled(tmp_path / act.__name__, ("close",), act), 4, **LIMITS)
        envs.reset(seed=3)
        if act is hang:
            with pytest.raises(stretto.WorldHung, match=r"no answer for 6 s while closing \(slot 1") as caught:
                envs.close()
            assert "in hang" in caught.value.stack
        else:
            envs.close()  # it has nothing left to lose
        assert len(list((tmp_path / act.__name__ / "passed").iterdir())) == 1
        assert envs.worker_pids == []


@pytest.mark.parametrize("seconds", [5.5, 7.0])
def test_a_world_that_is_slow_to_close_is_waited_for(seconds):
    envs = make_fake_vec(Drift, 4, Script(Delay(kind=Stop, seconds=seconds)), **LIMITS)
    envs.reset(seed=3)
    if seconds < LIMITS["reset_timeout"]:
        envs.close()
    else:
        with pytest.raises(stretto.WorldHung):
            envs.close()


@pytest.mark.parametrize("moment", ["step 3", "reset 2"])
def test_truncate_and_raise_hold_for_hangs_too(moment, tmp_path):
    for on_crash in ("truncate", "raise"):
        makers = scheduled(tmp_path / on_crash, (moment,), hang)
        with make_fake_vec(makers, 4, on_crash=on_crash, **LIMITS) as envs:
            envs.reset(seed=3)
            expected = (
                pytest.warns(stretto.SlotTruncated) if on_crash == "truncate" else pytest.raises(stretto.WorldHung)
            )
            with expected:
                for _ in range(40):
                    if envs.step(zeros(envs)).infos.get("_crash", np.zeros(4, bool)).any():
                        break
            # The slot that hangs while it is reset has no episode to lose; its neighbour has.
            lost = 2 if moment == "step 3" else 1
            assert envs.statistics().truncations == (lost if on_crash == "truncate" else 0)


@transports
def test_the_limit_is_for_one_world_not_for_all_of_a_worker(shares_memory):
    for moves, restarts in ((4, 0), (1, 1)):  # 16 seconds for five worlds, or for two
        script = Script(Delay(kind=step_kind(shares_memory), seconds=16.0, moves=moves))
        with make_fake_vec(Drift, 5, script, workers=1, shares_memory=shares_memory, **LIMITS) as envs:
            envs.reset(seed=0)
            envs.step(zeros(envs))
            assert envs.statistics().restarts == restarts


def test_a_long_replay_moves_and_is_no_hang():
    for beats, error in ((10, None), (1, stretto.WorldHung)):
        script = Script(Hang(kind=int, nth=41), Delay(kind=Restore, seconds=40.0, beats=beats))
        with make_fake_vec(partial(CountTo, 1000), 1, script, **LIMITS) as envs:
            envs.reset(seed=0)
            for _ in range(40):
                envs.step(zeros(envs))
            if error is not None:
                with pytest.raises(error, match="while replaying"):
                    envs.step(zeros(envs))
                continue
            assert envs.step(zeros(envs)).observations[0, 0] == 41
            assert envs.statistics().replayed_steps == 40
            (worker,) = envs._engine.supervisor.remote
            assert worker.progress[2] == beats + 40  # a replay shows a sign of life at every step


def test_no_limit_means_none():
    delays = [Delay(kind=kind, seconds=300.0) for kind in (Start, Reset, int)]
    with make_fake_vec(Drift, 2, Script(*delays), **dict.fromkeys(LIMITS)) as envs:
        envs.reset(seed=0)
        envs.step(zeros(envs))
        assert envs.statistics().restarts == 0


@pytest.mark.parametrize("on_crash", ["replay", "truncate", "raise"])
def test_one_that_answers_while_its_stack_is_asked_for_is_replaced_as_if_it_had_died_idle(on_crash):
    expected, actions = undisturbed()
    script = Script(Delay(kind=int, nth=5, seconds=5.1))
    with make_fake_vec(QUIET, 4, script, on_crash=on_crash, **LIMITS) as envs:
        if on_crash == "replay":
            play(envs, actions, 3).check_same(expected, "a run with an answer at the last moment and one without")
            assert envs.statistics().restarts == 1
            return
        envs.reset(seed=3)
        for action in actions[:5]:
            envs.step(action)
        with pytest.warns(stretto.SlotTruncated) if on_crash == "truncate" else pytest.raises(stretto.WorldHung):
            envs.step(actions[5])


# ---- what worlds say ----


class Talker(Scheduled):
    """Says what it is at, and then does what is scheduled there."""

    def _at(self, moment: str) -> None:
        print(moment)
        super()._at(moment)


@pytest.mark.parametrize("act", [die, hang])
def test_what_is_done_again_is_said_once(act, tmp_path, capfd):
    moments = ("step 2", "step 3") if act is hang else ("step 2", "step 3", "build")
    with make_fake_vec(partial(Talker, Schedule(tmp_path, moments), act, 1000), 1, **LIMITS) as envs:
        envs.reset(seed=0)
        for _ in range(4):
            envs.step(zeros(envs))
        assert envs.statistics().restarts == len(moments)
    said = ["build", "reset 1", "step 1", "step 2", "step 3", "step 4", "close"]
    assert capfd.readouterr().out.splitlines() == [f"[slot 0] {one}" for one in said]


@pytest.mark.parametrize("on_crash", ["truncate", "raise"])
@pytest.mark.parametrize("act", [die, hang])
def test_what_is_not_done_again_is_said_when_it_is_given_up(act, on_crash, tmp_path, capfd):
    makers = [partial(Talker, Schedule(tmp_path, ("step 2",)), act, 1000), partial(Drift, 1000)]
    with make_fake_vec(makers, 2, on_crash=on_crash, **LIMITS) as envs:
        envs.reset(seed=0)
        envs.step(zeros(envs))
        capfd.readouterr()
        envs.send(zeros(envs))
        assert envs.recv(ready=1).ids.tolist() == [1]
        assert capfd.readouterr().out == ""
        error = stretto.WorkerDied if act is die else stretto.WorldHung
        with pytest.warns(stretto.SlotTruncated) if on_crash == "truncate" else pytest.raises(error):
            envs.recv()
        assert capfd.readouterr().out == "[slot 0] step 2\n"
