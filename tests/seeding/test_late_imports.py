"""A call that imports torch and draws from it at once: done again where that can be done, refused where it cannot.

Each test is a program of its own, in which torch is not imported yet.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

PRELUDE = """
import pickle, random, sys
import numpy as np
from stretto.errors import LateImport
from stretto.seeding import LATE_IMPORT, GlobalDraws, PrivateGenerators, SeedTree

TREE = SeedTree(7).child("a world")

def draw():
    import torch
    return random.random(), np.random.standard_normal(), float(torch.rand(()))

def caller():
    return random.getstate(), np.random.get_state()[1].tobytes(), np.random.get_state()[2:]

assert "torch" not in sys.modules
before, draws = caller(), GlobalDraws()
guard = PrivateGenerators(TREE, probation=16)
"""


def run(program: str, prelude: str = PRELUDE) -> bytes:
    command = [sys.executable, "-c", prelude + textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_done_again_it_draws_what_it_would_draw_if_torch_had_been_there():
    run("""
        undone = []
        late = [guard.run_repeatable(draw, undo=undone.append), *(guard.run(draw) for _ in range(20))]
        assert len(undone) == 1 and undone[0][:2] == late[0][:2] and undone[0][2] != late[0][2]
        there = PrivateGenerators(TREE, probation=16)
        assert [there.run_repeatable(draw, undo=undone.append), *(there.run(draw) for _ in range(20))] == late
        assert len(undone) == 1
        assert guard.on_probation == there.on_probation and guard.drawn == there.drawn
        assert caller() == before and not draws.names()
    """)


def test_refused_where_it_cannot_be_done_again_and_the_caller_s_torch_is_as_after_an_import():
    run("""
        try:
            guard.run(draw)
        except LateImport as error:
            assert "import torch at the top of the module" in str(error)
        else:
            raise AssertionError("nothing was raised")
        assert caller() == before
        assert draws.names() == {LATE_IMPORT} and not GlobalDraws().names()
        import torch
        seed = torch.initial_seed()
        assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(seed).get_state())
        guard.run(draw)  # from now on it can be guarded
        assert torch.initial_seed() == seed and guard.drawn == {"random", "numpy", "torch"}
    """)


@pytest.mark.parametrize("seed", [0, (1 << 32) - 1])
def test_to_seed_it_is_to_touch_it_though_nothing_is_drawn(seed):
    run(f"""
        def begin():
            import torch
            torch.manual_seed({seed})

        guard.run_repeatable(begin)
        assert guard.drawn == {{"torch"}}
        import torch
        expected = torch.Generator().manual_seed({seed})
        assert [guard.run(torch.rand, 1) for _ in range(3)] == [torch.rand(1, generator=expected) for _ in range(3)]
    """)


def test_to_import_it_alone_is_allowed_anywhere_and_counts_as_no_draw():
    run("""
        guard.run(lambda: __import__("torch"))
        assert guard.drawn == set() and not draws.names()
        import torch
        torch.rand(1)
        assert draws.names() == {"torch"}
    """)


def test_what_was_drawn_from_in_another_process_is_imported_and_continued():
    told = run(
        """
        import pickle, sys, torch
        from stretto.seeding import PrivateGenerators, SeedTree
        guard = PrivateGenerators(SeedTree(7).child("a world"), probation=16)
        guard.run(torch.rand, ())
        state = guard.state()
        sys.stdout.buffer.write(pickle.dumps((state, [float(guard.run(torch.rand, ())) for _ in range(3)])))
        """,
        prelude="",
    )
    run(f"""
        state, expected = pickle.loads({told!r})
        assert "torch" not in sys.modules
        guard.set_state(state)
        assert [guard.run(draw)[2] for _ in range(3)] == expected
        assert caller() == before and not draws.names()
    """)


def test_a_world_that_is_known_to_draw_from_others_alone_is_not_looked_at():
    run("""
        known = PrivateGenerators(TREE, probation=0, drawn=["random"])
        known.run(draw)
        assert draws.names() == {"numpy", "torch"}
    """)
