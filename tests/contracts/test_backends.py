"""Every backend keeps the whole contract of a vector environment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gymnasium import spaces

from stretto.testing import ContractBroken, check_env_backend, check_worker
from stretto.workers.backends import MESSAGE_PROCESS, PROCESS, SERIAL, THREAD
from stretto.workers.inline import InlineWorker
from tests.backends import every_backend
from tests.workers.fake import fake_backend
from tests.worlds import Drift, Echo, GlobalDrift, ReusesItsArray, makes

WORLDS = {
    "drift": Drift,
    "global-draws": GlobalDrift,
    "one-array": makes(ReusesItsArray, 3),
    "loose": makes(Echo, spaces.Dict({"words": spaces.Text(8), "number": spaces.Discrete(5)})),
}


@every_backend
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_it_keeps_the_contract(world, options):
    check_env_backend(world, num_envs=3, steps=20, **options)


@every_backend
def test_it_keeps_the_contract_with_several_agents(options):
    from mpe2 import simple_spread_v3

    check_env_backend(lambda: simple_spread_v3.parallel_env(max_cycles=7), num_envs=3, steps=20, **options)


@every_backend
def test_it_keeps_the_contract_with_a_single_world(options):
    check_env_backend(Drift, num_envs=1, steps=20, **{**options, "workers": 1})


def start_here(index, capacity, arena, bell, factory):
    return InlineWorker(index, capacity, arena, factory)


FAKES = {
    f"fake{'-pickles' if pickles else ''}{'' if shares_memory else '-message'}": fake_backend(
        pickles=pickles, shares_memory=shares_memory
    )
    for pickles in (False, True)
    for shares_memory in (True, False)
}
WORKERS = {
    "inline": replace(SERIAL, start=start_here),
    "thread": THREAD,
    "process": PROCESS,
    "message": MESSAGE_PROCESS,
    **FAKES,
}


@pytest.mark.parametrize("backend", WORKERS.values(), ids=WORKERS)
def test_a_worker_keeps_the_contract(backend):
    check_worker(backend.start, pickles=backend.pickles, shares_memory=backend.shares_memory)


def test_a_world_that_depends_on_its_process_is_found_out():
    with pytest.raises(ContractBroken, match=r"this backend and the serial one \(NextStep\) part at"):
        check_env_backend(DependsOnItsProcess, backend="process", workers=2)


class DependsOnItsProcess(Drift):
    def see(self):
        import os

        return super().see() + os.getpid()
