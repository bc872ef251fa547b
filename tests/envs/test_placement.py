"""Where processes do not pay, the caller takes the worlds home; where they would pay again, it moves them out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import stretto
from stretto.envs import placement
from stretto.envs.placement import Look, Placement, better_away, better_home, others_beside, share
from stretto.testing import play, sample_actions
from tests.workers.fake import kill_all, make_fake_vec
from tests.worlds import CountTo, Drift

STEPS = 60
BOTH = 2.0
"""Two workers have half of the worlds each, and the caller is one of them."""


def look(times_alone: float, others: float) -> Look:
    """Return a step that takes so many times what the caller would compute if it stepped all worlds itself."""
    return Look(times_alone, 1 / BOTH, others)


# ---- when it pays ----


def test_programs_share_the_cores_evenly():
    assert share(2, 0, 2) == 2
    assert share(1, 1, 2) == 1
    assert share(2, 2, 2) == 1
    assert share(1, 3, 2) == 0.5


@pytest.mark.parametrize(
    ("got", "workers", "free", "running", "others"),
    [
        (1.0, 1.0, 0.0, 2.0, 0.0),  # two of ours on two cores
        (1.0, 0.0, 1.0, 1.0, 0.0),  # the caller alone, and a core is free
        (1.0, 0.0, 0.0, 2.0, 1.0),  # another program has it
        (0.5, 1.0, 0.0, 4.0, 2.0),  # four programs on two cores, two of them ours
        (0.4, 0.0, 0.0, 5.0, 4.0),
        (0.05, 0.5, 0.0, 11.0, 10.0),  # who sleeps after each step gets less than its share
    ],
)
def test_how_many_programs_compete_is_seen_by_what_the_caller_gets_of_a_core(got, workers, free, running, others):
    assert others_beside(got, workers, free, running, cores=2) == pytest.approx(others)


@pytest.mark.parametrize(
    ("times_alone", "others", "home"),
    [(0.55, 0, False), (0.7, 1, False), (0.9, 1, True), (1.1, 2, False), (1.8, 2, True), (1.9, 4, False)],
)
def test_worlds_come_home_where_the_caller_alone_would_be_faster_beside_the_same_programs(times_alone, others, home):
    assert better_home(look(times_alone, others), None, BOTH, cores=2) is home


@pytest.mark.parametrize(("others", "away"), [(0, True), (1, False), (1.5, False), (2, True), (4, True)])
def test_worlds_move_out_where_workers_get_enough_more_of_the_cores(others, away):
    assert better_away(look(1.0, others), None, 2, cores=2) is away


@pytest.mark.parametrize(("before", "better"), [(0.8, True), (1.2, False)])
def test_what_was_seen_of_the_other_place_counts_more_than_what_is_expected_of_it(before, better):
    for others in (1, 2):
        assert better_away(look(1.0, others), look(before, others), 2, cores=2) is better
        assert better_home(look(1.0, others), look(before, others), BOTH, cores=2) is better


def test_what_was_seen_beside_other_programs_does_not_count():
    assert better_away(look(1.0, 0), look(3.0, 1), 2, cores=2)
    assert better_home(look(0.9, 1), look(0.5, 0), BOTH, cores=2)


def test_idle_cores_are_another_case_than_a_program_that_computes_most_of_the_time():
    assert better_away(look(1.0, 0), look(1.2, 0.8), 2, cores=2)


# ---- patience ----


def judged(*steps: tuple[float, float]) -> Placement:
    """Return what has moved once for each pair: seconds of a step before it, and after."""
    with make(CountTo) as envs:
        found: Placement = envs.engine.placement
    for before, after in steps:
        found._elsewhere, found._judged = look(before, 0), False
        found._judge(look(after, 0))
    return found


def test_a_move_that_did_not_pay_makes_the_next_one_wait_longer():
    assert judged((1.0, 1.1), (1.0, 1.0))._patience == 4 * placement.LEAST_PATIENCE


def test_undoing_a_move_that_did_not_pay_makes_nobody_less_patient():
    assert judged((1.0, 1.5), (1.5, 1.0))._patience == 2 * placement.LEAST_PATIENCE


def test_moves_that_pay_both_ways_make_the_next_one_come_sooner():
    assert judged((1.0, 1.5), (1.5, 1.0), (2.0, 1.0))._patience == placement.LEAST_PATIENCE


def test_where_other_programs_come_or_go_patience_begins_anew():
    found = judged((1.0, 1.1), (1.0, 1.1))
    found._judge(look(1.1, 0.5))
    assert found._patience == 4 * placement.LEAST_PATIENCE
    found._judge(look(1.1, 1))
    assert found._patience == placement.LEAST_PATIENCE


def test_a_move_that_did_not_pay_is_undone_whatever_the_patience(restless):
    restless.setattr(placement, "others_beside", lambda *_, **__: 0.0)
    with make(CountTo) as envs:
        envs.reset(seed=0)
        found: Placement = envs.engine.placement
        found._patience = float("inf")
        pids = envs.worker_pids
        for _ in range(4):
            envs.step(np.zeros(4, int))
        assert envs.worker_pids == pids
        found._elsewhere, found._judged = look(1e-12, 0), False  # the caller alone was faster
        for _ in range(4):
            envs.step(np.zeros(4, int))
        assert not envs.worker_pids


def test_what_happens_while_the_caller_does_not_step_is_not_seen(restless):
    restless.setattr(placement, "PAUSE_SECONDS", -1.0)  # every step comes after a pause
    with make(CountTo) as envs:
        envs.reset(seed=0)
        pids = envs.worker_pids
        for _ in range(10):
            envs.step(np.zeros(4, int))
        assert envs.worker_pids == pids


# ---- moving ----


@pytest.fixture
def restless(monkeypatch) -> Iterator[pytest.MonkeyPatch]:
    """Let worlds move as soon as they may, whatever it costs."""
    monkeypatch.setattr(placement, "LOOK_SECONDS", 1e-12)
    monkeypatch.setattr(placement, "LOOKS", 1)
    monkeypatch.setattr(placement, "LEAST_PATIENCE", 0.0)
    monkeypatch.setattr(placement, "PRICE", float("inf"))
    monkeypatch.setattr(placement, "better_home", lambda *_: True)
    monkeypatch.setattr(placement, "better_away", lambda *_: True)
    return monkeypatch


def make(world: Any, count: int = 4, **options: Any) -> Any:
    """Return worlds on fake workers that may move."""
    envs = make_fake_vec(world, count, **options)
    engine = envs.engine
    parts = engine.supervisor, engine.recovery, engine.state
    engine.placement = Placement(*parts, build_seconds=0.0)
    return envs


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("isolate", [False, True], ids=["with the caller", "apart"])
@pytest.mark.parametrize("mode", list(AutoresetMode)[:2], ids=lambda mode: mode.value)
@pytest.mark.parametrize("world", [Drift, partial(CountTo, 7)], ids=["Drift", "CountTo"])
def test_moving_back_and_forth_changes_no_result(world, mode, isolate):
    with stretto.make_vec(world, 4, backend="serial", autoreset_mode=mode) as envs:
        actions = sample_actions(envs, STEPS)
        expected = play(envs, actions, 3)
    with make(world, autoreset_mode=mode, isolate=isolate) as envs:
        play(envs, actions, 3).check_same(expected, "a run that moved and one that did not")
        assert envs.engine.placement._moves >= 4
        assert envs.statistics().restarts == envs.statistics().replayed_steps == envs.statistics().truncations == 0


@pytest.mark.usefixtures("restless")
def test_it_says_where_the_worlds_are():
    with make(CountTo) as envs:
        assert "moved" not in envs.choice
        envs.reset(seed=0)
        seen = []
        for _ in range(8):
            envs.step(np.zeros(4, int))
            seen.append((bool(envs.worker_pids), envs.choice.partition("; ")[2]))
        assert (False, "moved once, now all in the caller, because other programs compute, too") in seen
        assert (True, "moved 2 times, now in workers, where they are faster") in seen


class Wanders(CountTo):
    """Observes another number in every life: nothing can be brought to where it is."""

    lives = iter(range(1, 1 << 30))

    def __init__(self) -> None:
        super().__init__(6)
        self._life = next(self.lives)

    def see(self) -> Any:
        return np.array([self.steps, self._life])


@pytest.mark.usefixtures("restless")
def test_a_world_that_does_not_repeat_itself_stays_where_it_is_and_nothing_is_lost():
    with make(Wanders) as envs:
        pids = envs.worker_pids
        first = envs.reset(seed=0)[0][:, 1].tolist()
        for _ in range(20):
            observations, _, _, truncated, _ = envs.step(np.zeros(4, int))
            assert observations[:, 1].tolist() == first
            assert not truncated.any()
        assert envs.worker_pids == pids
        assert "cannot be brought elsewhere: the world does not repeat itself" in envs.choice


class Announces(CountTo):
    """Prints in every step."""

    def step(self, action: Any) -> Any:
        print("step")
        return super().step(action)


@pytest.mark.usefixtures("restless")
def test_a_world_that_prints_stays_so_that_nobody_hears_it_twice(capfd):
    with make(Announces) as envs:
        pids = envs.worker_pids
        envs.reset(seed=0)
        for _ in range(10):
            envs.step(np.zeros(4, int))
        assert envs.worker_pids == pids
    assert capfd.readouterr().out.count("step\n") == 36  # one step of ten only resets


def test_nobody_moves_where_nobody_says_how_long_programs_wait_for_cores(restless):
    restless.setattr(placement, "core_seconds", lambda: None)
    with make(CountTo) as envs:
        pids = envs.worker_pids
        envs.reset(seed=0)
        for _ in range(10):
            envs.step(np.zeros(4, int))
        assert envs.worker_pids == pids


@pytest.mark.usefixtures("restless")
def test_nobody_moves_any_more_once_steps_were_sent():
    with make(CountTo, isolate=False) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(4, int))
        envs.recv()
        pids = envs.worker_pids
        assert len(pids) == 2
        for _ in range(10):
            envs.step(np.zeros(4, int))
        assert envs.worker_pids == pids


def test_a_move_that_takes_too_much_of_the_time_waits(restless):
    restless.setattr(placement, "PRICE", -1.0)
    with make(CountTo) as envs:
        pids = envs.worker_pids
        envs.reset(seed=0)
        for _ in range(10):
            envs.step(np.zeros(4, int))
        assert envs.worker_pids == pids


@pytest.mark.usefixtures("restless")
def test_workers_that_die_between_moves_are_recovered():
    with stretto.make_vec(Drift, 4, backend="serial") as envs:
        actions = sample_actions(envs, STEPS)
        expected = play(envs, actions, 3)
    with make(Drift) as envs:

        def kill_some(number: int) -> None:
            if number % 9 == 0:
                kill_all(envs)

        play(envs, actions, 3, before_step=kill_some).check_same(expected, "a run that moved and lost workers, and one")
        assert envs.statistics().restarts > 0
        assert envs.engine.placement._moves > 0


class FailsAway(CountTo):
    """Cannot be built twice in the caller's process."""

    built = 0

    def __init__(self) -> None:
        super().__init__(6)
        type(self).built += 1
        if type(self).built > 8:
            raise RuntimeError("no more")


@pytest.mark.usefixtures("restless")
def test_a_world_that_cannot_be_built_again_stays_where_it_is():
    FailsAway.built = 4
    with make(FailsAway) as envs:
        pids = envs.worker_pids
        envs.reset(seed=0)
        for _ in range(10):
            envs.step(np.zeros(4, int))
        assert envs.worker_pids == pids
        assert "no more" in envs.choice
