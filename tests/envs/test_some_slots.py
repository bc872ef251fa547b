"""Asking some environments rather than all: calls, attributes, options of a reset, and infos kept apart."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import stretto
from stretto import AutoresetMode, UsageError
from tests.backends import every_backend
from tests.interop.walk import make_lake, make_walk


@every_backend
def test_a_method_is_called_in_some_environments_and_answers_come_in_the_order_of_the_ids(options):
    with stretto.make_vec(make_walk, 3, **options) as envs:
        envs.reset(seed=0)
        assert envs.call_some([2, 0], "count_call", 5) == (5, 5)
        assert envs.call("count_call") == (6, 1, 6)
        assert envs.call_some([], "count_call") == ()
        assert envs.get_attr("called") == (6, 1, 6)


@every_backend
def test_an_attribute_is_set_in_some_environments(options):
    with stretto.make_vec(make_walk, 3, **options) as envs:
        envs.set_attr("goal", [7, 8], ids=[2, 1])
        assert envs.get_attr("goal") == (4, 8, 7)
        envs.set_attr("goal", 9, ids=[0])
        assert envs.get_attr("goal") == (9, 8, 7)


@every_backend
def test_ids_that_are_not_there_or_twice_are_refused(options):
    with stretto.make_vec(make_walk, 3, **options) as envs:
        for ids in ([3], [-1], [1, 1]):
            with pytest.raises(UsageError, match="from 0 to 2"):
                envs.call_some(ids, "count_call")
            with pytest.raises(UsageError, match="from 0 to 2"):
                envs.set_attr("goal", 1, ids=ids)
        with pytest.raises(UsageError, match="2 environments, got 3"):
            envs.set_attr("goal", [1, 2, 3], ids=[0, 1])
        assert envs.get_attr("called") == (0, 0, 0)


@every_backend
def test_every_environment_may_have_options_of_its_own(options):
    with stretto.make_vec(make_walk, 3, **options) as envs:
        observations, _ = envs.reset(seed=0, options=[{"start": 2}, None, {"start": 1}])
        assert observations["place"][::2, 0].tolist() == [2.0, 1.0]
        with pytest.raises(UsageError, match="3 environments, got 2"):
            envs.reset(options=[{}, {}])


def test_what_some_were_told_is_told_again_to_those_alone_after_their_worker_died():
    with stretto.make_vec(make_walk, 4, backend="process", workers=2, isolate=True) as envs:
        envs.reset(seed=0)
        for number in range(3):
            envs.step(np.zeros(4, int))
            envs.call_some([number], "count_call", number + 1)
            envs.set_attr("goal", 50 + number, ids=[number + 1])
        expected = envs.get_attr("called"), envs.get_attr("goal")
        for pid in envs.worker_pids:
            os.kill(pid, signal.SIGKILL)
        envs.step(np.zeros(4, int))
        assert (envs.get_attr("called"), envs.get_attr("goal")) == expected


@every_backend
def test_separate_infos_are_what_the_environments_gave(options):
    # FrozenLake gives an int at reset and a float at each step: batched together, the float would become 0.
    with stretto.make_vec(make_lake, 3, autoreset_mode=AutoresetMode.SAME_STEP, **options) as envs:
        envs.separate_infos()
        _, infos = envs.reset(seed=0)
        assert infos == {slot: [{"prob": 1}] for slot in range(3)}
        ended = 0
        for number in range(40):
            _, _, terminated, truncated, infos = envs.step([number % 4] * 3)
            for slot, over in enumerate(terminated | truncated):
                given = infos[slot]
                if over:
                    assert given[0]["final_info"]["prob"] == pytest.approx(1 / 3)
                    assert given[1] == {"prob": 1}
                else:
                    assert given == [{"prob": pytest.approx(1 / 3)}]
                ended += int(over)
        assert ended > 0
