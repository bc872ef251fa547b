"""Private copies of the global generators: exact, and kept only where something was drawn from them."""

from __future__ import annotations

import pickle
import random
import sys
import threading
from types import CodeType
from typing import Any

import numpy as np
import pytest

import stretto
from stretto.seeding import GLOBAL_GENERATORS, GlobalDraws, PrivateGenerators, SeedTree, generators, watching_many
from tests.worlds import GlobalDrift

TREE = SeedTree(7).child("a world")


def nothing() -> None:
    """Draw from no generator."""


def test_a_world_that_draws_from_none_keeps_only_seeds_while_it_is_watched():
    guard = PrivateGenerators(TREE, probation=16)
    guard.run(nothing)
    assert guard.on_probation
    assert len(pickle.dumps(guard.state())) < 500  # a state of any generator takes thousands of bytes


@pytest.mark.parametrize("idle_calls", [0, 1, 5])
def test_its_stream_begins_at_its_seed_however_late_it_draws(idle_calls):
    guard, alone = PrivateGenerators(TREE, probation=16), random.Random(TREE.child("random").entropy())
    for _ in range(idle_calls):
        guard.run(nothing)
    drawn = [guard.run(random.gauss, 0.0, 1.0) for _ in range(20)]
    assert drawn == [alone.gauss(0.0, 1.0) for _ in range(20)]
    assert guard.drawn == {"random"}


@pytest.mark.parametrize("draws_before", [0, 1])
@pytest.mark.parametrize("draw", [random.random, np.random.standard_normal], ids=["random", "numpy"])
def test_a_state_continues_the_streams_whether_or_not_anything_was_drawn(draw, draws_before):
    one = PrivateGenerators(TREE, probation=16)
    for _ in range(draws_before):
        one.run(draw)
    other = PrivateGenerators(SeedTree(8), probation=16)
    other.run(draw)
    other.set_state(pickle.loads(pickle.dumps(one.state())))
    assert [one.run(draw) for _ in range(3)] == [other.run(draw) for _ in range(3)]


def test_seeded_anew_it_begins_anew():
    guard = PrivateGenerators(TREE, probation=16)
    first = guard.run(random.random)
    guard.run(random.random)
    guard.reseed(TREE)
    assert guard.run(random.random) == first


def test_one_whose_draws_are_known_beforehand_is_not_watched_and_draws_the_same():
    watched, known = PrivateGenerators(TREE, 1 << 62), PrivateGenerators(TREE, 0, GLOBAL_GENERATORS)
    for draw in (random.random, np.random.standard_normal, np.random.random, random.random):
        assert watched.run(draw) == known.run(draw)
    assert watched.drawn == {"random", "numpy"}


def test_auto_and_private_give_the_same_steps():
    runs = []
    for how in ("auto", "private"):
        with stretto.make_vec(GlobalDrift, 3, backend="serial", global_rng=how) as envs:
            envs.reset(seed=4)
            runs.append([envs.step(np.zeros(3, int)).observations.tobytes() for _ in range(40)])
    assert runs[0] == runs[1]


class Failed(Exception):
    """Raised by what is called."""


@pytest.mark.parametrize("probation", [0, 16])
def test_the_callers_generators_are_as_before_even_if_a_call_raises(probation):
    def draw_and_fail():
        random.random()
        np.random.standard_normal()  # numpy holds a second one back
        raise Failed

    np.random.standard_normal()
    draws = GlobalDraws()
    guard = PrivateGenerators(TREE, probation, GLOBAL_GENERATORS)
    with pytest.raises(Failed):
        guard.run(draw_and_fail)
    assert not draws.names()
    alone = random.Random(TREE.child("random").entropy())
    assert [alone.random(), alone.random()][1] == guard.run(random.random)


def test_a_world_may_replace_the_bit_generator_of_numpy_and_keeps_its_own():
    def replace():
        np.random.set_bit_generator(np.random.PCG64(5))

    one, draws = PrivateGenerators(TREE, probation=16), GlobalDraws()
    one.run(replace)
    one.run(np.random.random)
    other = PrivateGenerators(TREE, probation=16)
    other.set_state(pickle.loads(pickle.dumps(one.state())))
    alone = np.random.RandomState(np.random.PCG64(5)).random(4)
    assert [other.run(np.random.random) for _ in range(3)] == alone[1:].tolist()
    assert not draws.names()


@pytest.mark.parametrize(
    ("draw", "names"),
    [
        (random.random, {"random"}),
        (lambda: random.seed(4), {"random"}),
        (np.random.random, {"numpy"}),
        (lambda: (np.random.seed(1), random.random()), {"random", "numpy"}),
        (lambda: np.random.default_rng(0).random(), set()),
        (lambda: PrivateGenerators(TREE).run(lambda: (random.random(), np.random.random())), set()),
        (nothing, set()),
    ],
)
def test_what_is_drawn_from_this_process_s_generators_is_found_out(draw, names):
    np.random.standard_normal()
    draws = GlobalDraws()
    draw()
    assert draws.names() == names


def test_a_normal_number_that_was_held_back_and_is_taken_now_counts_as_drawn():
    np.random.seed(0)
    np.random.standard_normal()
    draws = GlobalDraws()
    np.random.standard_normal()  # which moves no bit generator
    assert draws.names() == {"numpy"}


class _CtrlC:
    """Ctrl-C before the instruction number `moment` of some functions."""

    def __init__(self, functions: tuple[CodeType, ...], moment: int) -> None:
        self.functions, self.left = functions, moment

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        if frame.f_code not in self.functions:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def run_one() -> None:
    PrivateGenerators(TREE, drawn=["random"], probation=0).run(nothing)


def watch_two() -> None:
    guards = [PrivateGenerators(TREE, probation=16) for _ in range(2)]
    watching_many(lambda: [guard.call(lambda _: random.random(), None) for guard in guards])


@pytest.mark.parametrize("way", [run_one, watch_two])
def test_whenever_ctrl_c_comes_other_threads_get_their_turn(way, monkeypatch):
    monkeypatch.setattr(generators, "_LOOK_SECONDS", 0.002)
    functions = tuple(
        function.__code__ for function in (generators._next_turn, PrivateGenerators._run, generators.watching_many)
    )
    before = sys.gettrace()
    for moment in range(1, 1000):
        ctrl_c = _CtrlC(functions, moment)
        sys.settrace(ctrl_c)
        try:
            way()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        other = threading.Thread(target=PrivateGenerators(TREE).run, args=[nothing], daemon=True)
        other.start()
        other.join(20)
        assert not other.is_alive(), f"no turn after Ctrl-C at moment {moment}"
        if ctrl_c.left > 0:
            break
    assert moment > 40
