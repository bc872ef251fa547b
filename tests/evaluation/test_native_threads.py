"""How many native threads a computation has is part of the plan: the same in every process, and recorded."""

from __future__ import annotations

import json
import re
import threading
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from threadpoolctl import ThreadpoolController, threadpool_limits

from stretto import CpuBudget, budget, make_vec
from stretto.budget import NativeThreads, share_native_threads
from stretto.errors import FewerWorkers, InvalidLayout, UsageError, WorldHung
from stretto.evaluation.evaluate import evaluate


def native_threads() -> int:
    """Return how many threads numpy's own library uses in this process now."""
    return max(one.num_threads for one in ThreadpoolController().select(user_api="blas").lib_controllers)


class TwoAgents:
    """A world whose rewards are the actions of its agents, and whose statistics tell its own native threads."""

    possible_agents = ("a", "b")

    def __init__(self):
        self.agents, self.metadata, self.unwrapped = [], {}, self

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2,), np.float64)

    def action_space(self, agent):
        return spaces.Discrete(100)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, np.zeros(2)), {}

    def step(self, actions):
        seen = dict.fromkeys(actions, np.zeros(2))
        rewards = {agent: float(action) for agent, action in actions.items()}
        flags = dict.fromkeys(actions, True)
        self.agents = []
        return seen, rewards, flags, dict(flags), {agent: {} for agent in actions}

    def statistics(self):
        return {"native_threads": native_threads()}

    def close(self):
        pass


def threads_of_this_thread() -> int:
    """Return how many threads OpenMP uses for the thread that asks: new ones do not have the limit of others."""
    import torch  # noqa: F401  which brings OpenMP

    return max(one.num_threads for one in ThreadpoolController().select(user_api="openmp").lib_controllers)


class Telling:
    """A policy whose action is the number of native threads where it is computed."""

    def step(self, observation):
        return native_threads()


class TellingTorch:
    def step(self, observation):
        import torch

        return torch.get_num_threads()


class TellingOpenMP:
    def step(self, observation):
        return threads_of_this_thread()


class OneAgent(gymnasium.Env):
    observation_space = spaces.Box(-1, 100, (1,), np.float64)
    action_space = spaces.Discrete(2)

    told = staticmethod(native_threads)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.told()], np.float64), {}

    def step(self, action):
        return np.array([self.told()], np.float64), 0.0, False, False, {}


class OneAgentWithOpenMP(OneAgent):
    told = staticmethod(threads_of_this_thread)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("jobs", "strategy"), [(0, "sequential"), (0, "threads"), (0, "processes"), (1, "processes")])
def test_worlds_and_policies_compute_with_the_native_threads_of_the_plan_wherever_they_are(jobs, strategy, threads):
    report = evaluate(TwoAgents, Telling, episodes=2, jobs=jobs, strategy=strategy, native_threads=threads)
    assert [record.failure for record in report.records] == [None, None]
    assert [record.rewards for record in report.records] == [{"a": threads, "b": threads}] * 2
    assert [record.statistics for record in report.records] == [{"native_threads": threads}] * 2


@pytest.mark.parametrize("jobs", [0, 1])
def test_torch_computes_with_the_native_threads_of_the_plan(jobs):
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    report = evaluate(TwoAgents, TellingTorch, episodes=1, jobs=jobs, native_threads=3, budget=CpuBudget(3))
    assert report.records[0].rewards == {"a": 3, "b": 3}
    assert torch.get_num_threads() == before


def test_threads_of_policies_have_the_native_threads_of_the_plan_each():
    pytest.importorskip("torch")
    options = {"strategy": "threads", "native_threads": 3, "budget": CpuBudget(3)}
    report = evaluate(TwoAgents, TellingOpenMP, episodes=1, jobs=0, **options)
    assert report.records[0].rewards == {"a": 3, "b": 3}


def test_threads_that_step_worlds_have_the_native_threads_that_were_asked_for_each():
    pytest.importorskip("torch")
    with make_vec(OneAgentWithOpenMP, 3, backend="thread", workers=3, native_threads=3) as envs:
        envs.reset(seed=0)
        assert envs.step([0, 0, 0])[0].tolist() == [[3.0]] * 3


def test_threads_that_step_worlds_cap_the_limits_of_the_whole_process_while_any_of_them_is_at_work():
    both = threading.Barrier(2)

    class Meeting(OneAgent):
        def step(self, action):
            both.wait(30)
            return super().step(action)

    with threadpool_limits(3), make_vec(Meeting, 2, backend="thread", workers=2, global_rng="shared") as envs:
        envs.reset(seed=0)
        assert native_threads() == 3
        for _ in range(20):
            assert envs.step([0, 0])[0].tolist() == [[1.0]] * 2
            assert native_threads() == 3


@pytest.mark.parametrize("shown", [True, False])
def test_openblas_has_as_many_threads_as_it_is_told_whether_or_not_the_number_is_written_where_it_lies(
    shown, monkeypatch
):
    monkeypatch.setattr(
        budget, "_process", budget._ProcessLimits()
    )  # nobody has looked for libraries, no threads step worlds
    if not shown:
        monkeypatch.setattr(budget, "_where_shown", lambda *_: None)
    with threadpool_limits(3):
        one, many = NativeThreads(1), NativeThreads(4)
        with one.capped():
            assert native_threads() == 1
            with many.capped():
                assert native_threads() == 4
            assert native_threads() == 1
        assert native_threads() == 3
        blas = ThreadpoolController().select(internal_api="openblas", threading_layer="pthreads").lib_controllers
        pools = [budget._process.known[library.filepath] for library in blas]
        assert all((pool.shown is not None) is shown for pool in pools)


def threads_of_mkl() -> int:
    """Return how many threads MKL uses for the products of the thread that asks."""
    import torch

    return int(re.search(r"mkl_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())[1])


def test_mkl_is_capped_too_where_others_have_limited_openmp_alone():
    torch = pytest.importorskip("torch")
    if "mkl_get_max_threads" not in torch.__config__.parallel_info():
        pytest.skip("this torch has no MKL")
    found = []

    def compute():  # in a thread, which has limits of its own
        torch.set_num_threads(2)
        assert torch.get_num_threads() == 2  # when it is asked first, it sets what a new thread has
        with threadpool_limits(1, user_api="openmp"):
            found.append((torch.get_num_threads(), threads_of_mkl()))
            with NativeThreads(1).capped():
                found.append((torch.get_num_threads(), threads_of_mkl()))

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert found == [(1, 2), (1, 1)]


def test_the_limits_of_the_process_go_back_when_the_last_holder_lets_go_in_whatever_order_they_came():
    share_native_threads()
    with threadpool_limits(5):
        first, second, third = NativeThreads(1), NativeThreads(1), NativeThreads(2)
        undo = [first.cap(), second.cap()]
        first.restore(undo[0])
        assert native_threads() == 1
        with third.capped():
            assert native_threads() == 2
        assert native_threads() == 1
        second.restore(undo[1])
        assert native_threads() == 5
        second.let_go()
        assert native_threads() == 5


def test_a_thread_that_was_given_up_does_not_keep_the_limits_of_the_process():
    gate = threading.Event()

    class Hanging(OneAgent):
        def step(self, action):
            gate.wait(60)
            return super().step(action)

    with threadpool_limits(3):
        with make_vec(Hanging, 1, backend="thread", step_timeout=0.2, on_crash="raise") as envs:
            envs.reset(seed=0)
            with pytest.raises(WorldHung):
                envs.step([0])
            assert native_threads() == 3
        gate.set()


def test_the_caller_s_own_native_threads_are_as_before_when_it_has_played_itself():
    before = native_threads()
    evaluate(TwoAgents, Telling, episodes=1, jobs=0, native_threads=before + 1, budget=CpuBudget(before + 1))
    assert native_threads() == before


def test_the_number_is_part_of_the_record_and_an_evaluation_goes_on_only_with_the_same(tmp_path):
    evaluate(TwoAgents, Telling, episodes=1, jobs=0, native_threads=2, budget=CpuBudget(2), out=tmp_path)
    assert json.loads((tmp_path / "plan.json").read_text())["native_threads"] == 2
    assert json.loads((tmp_path / "summary.json").read_text())["plan"]["native_threads"] == 2
    with pytest.raises(UsageError, match=r"native_threads was 2 in .* and is 1 now"):
        evaluate(TwoAgents, Telling, episodes=1, jobs=0, out=tmp_path, resume=True)


def test_an_episode_that_failed_is_played_again_with_the_same_number():
    def fail(observation):
        raise RuntimeError

    report = evaluate(TwoAgents, fail, episodes=1, jobs=0, native_threads=2, budget=CpuBudget(2))
    assert "native_threads=2" in report.records[0].failure.reproduce


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_a_number_of_native_threads_is_a_whole_number_of_at_least_one(wrong):
    with pytest.raises(UsageError, match="native_threads must be a whole number of at least 1"):
        evaluate(TwoAgents, Telling, episodes=1, jobs=0, native_threads=wrong)


def test_jobs_and_their_native_threads_together_take_no_more_cores_than_there_are():
    with pytest.warns(FewerWorkers, match="jobs is 1 instead of 3: 3 jobs of 2 native threads need 6 cores, and 2 are"):
        report = evaluate(TwoAgents, Telling, episodes=3, jobs=3, native_threads=2, budget=CpuBudget(2))
    assert report.plan["timing"]["processes"] == 1


def test_by_default_there_are_as_many_jobs_as_fit_with_their_native_threads_and_nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = evaluate(TwoAgents, Telling, episodes=4, native_threads=2, budget=CpuBudget(4))
    assert report.plan["timing"]["processes"] == 2


def test_the_cores_of_native_threads_are_taken_from_the_budget_while_it_plays():
    budget, free = CpuBudget(8), []
    evaluate(
        TwoAgents,
        Telling,
        episodes=1,
        jobs=2,
        native_threads=3,
        budget=budget,
        on_begin=lambda: free.append(budget.free),
    )
    assert (free, budget.free) == ([2], 8)


@pytest.mark.parametrize("options", [{"backend": "serial"}, {"backend": "process", "isolate": True}], ids=str)
def test_a_vector_environment_steps_its_worlds_with_the_native_threads_that_were_asked_for(options):
    with make_vec(OneAgent, 1, native_threads=2, **options) as envs:
        assert envs.reset(seed=0)[0].tolist() == [[2.0]]
        assert envs.step([0])[0].tolist() == [[2.0]]
    with pytest.raises(InvalidLayout, match="native_threads must be at least 1"):
        make_vec(OneAgent, 1, native_threads=0, **options)
