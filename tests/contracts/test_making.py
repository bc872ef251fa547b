"""From an id, a spec, a factory or a list of them to a running vector environment; and why it runs as it does."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import textwrap
import threading
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, VectorizeMode
from gymnasium.vector import AutoresetMode

import stretto
from stretto import autotune
from stretto.testing import check_env, check_same, play, sample_actions
from tests.backends import every_backend
from tests.worlds import CountTo, Drift, Raiser, Slow, TaskWorld, makes


def rows_of(source, count=2, **options):
    with stretto.make_vec(source, count, **options) as envs:
        return envs.reset(seed=0)[0]


@every_backend
def test_an_id_a_spec_a_class_a_function_and_a_partial_all_do(options):
    gymnasium.register("tests/Drift-v0", entry_point="tests.worlds:Drift")
    try:
        spec = gymnasium.spec("tests/Drift-v0")
        expected = rows_of(Drift, backend="serial")
        for source in ("tests/Drift-v0", spec, Drift, makes(Drift), functools.partial(Drift, 5), [Drift, Drift]):
            check_same(rows_of(source, **options), expected, f"{source}")
    finally:
        del gymnasium.registry["tests/Drift-v0"]


class Placed(Drift):
    def __init__(self, place):
        super().__init__()
        self.place = place

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return np.full_like(observation, self.place), info


@every_backend
def test_a_function_finds_an_id_that_only_the_caller_has_registered_and_draws_the_same_as_in_the_caller(options):
    def make():
        return gymnasium.make("tests/Placed-v0", place=random.random() * np.random.rand())

    gymnasium.register("tests/Placed-v0", entry_point=Placed)
    gymnasium.register("tests/Unpicklable-v0", entry_point=Placed, kwargs={"place": threading.Lock()})
    try:
        check_same(rows_of([make] * 3, 3, **options), rows_of([make] * 3, 3, backend="serial"), "places")
    finally:
        del gymnasium.registry["tests/Placed-v0"], gymnasium.registry["tests/Unpicklable-v0"]


def test_a_package_that_registers_its_ids_again_in_a_worker_does_so_quietly():
    code = """
        import gymnasium, minigrid, stretto

        def make():
            return gymnasium.make("MiniGrid-Empty-5x5-v0")

        stretto.make_vec(make, 1, backend="process", isolate=True).close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""


@every_backend
def test_an_id_may_name_the_module_that_registers_it(options):
    assert rows_of("minigrid:MiniGrid-Empty-5x5-v0", **options)["image"].shape == (2, 7, 7, 3)


def test_an_id_may_leave_out_its_version_as_with_gymnasium():
    with pytest.warns(UserWarning, match="Using the latest versioned environment"):
        rows_of("CartPole", backend="serial")


@every_backend
def test_a_spec_made_by_hand_need_not_be_registered_at_all(options):
    spec = EnvSpec("unknown/Thing-v0", entry_point=Drift, max_episode_steps=3)
    with stretto.make_vec(spec, 2, **options) as envs:
        run = play(envs, sample_actions(envs, 3), 0)
        assert run.moments[3][3].all()
        assert envs.spec.id == "unknown/Thing-v0"


def test_an_id_that_the_script_itself_registers_reaches_the_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import gymnasium, numpy as np, stretto
            from gymnasium import spaces

            class Mine(gymnasium.Env):
                observation_space = spaces.Box(-1, 1, (1,))
                action_space = spaces.Discrete(2)

                def __init__(self, value=0.5):
                    self.value = value

                def reset(self, *, seed=None, options=None):
                    return np.array([self.value], np.float32), {}

                def step(self, action):
                    return np.array([-self.value], np.float32), 1.0, False, False, {}

            gymnasium.register("Mine-v0", entry_point=Mine)
            options = {"backend": "process", "workers": 2, "isolate": True, "env_kwargs": {"value": 0.25}}
            envs = stretto.make_vec("Mine-v0", 4, **options)
            print(envs.reset(seed=0)[0].tolist(), envs.step([0] * 4).observations.tolist())
            """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == f"{[[0.25]] * 4} {[[-0.25]] * 4}"


@every_backend
def test_kwargs_and_wrappers_reach_every_world_the_first_wrapper_innermost(options):
    wrappers = [
        lambda env: gymnasium.wrappers.TransformReward(env, lambda reward: reward + 1),
        lambda env: gymnasium.wrappers.TransformReward(env, lambda reward: reward * 10),
    ]
    with stretto.make_vec(CountTo, 2, env_kwargs={"limit": 1}, wrappers=wrappers, **options) as envs:
        envs.reset(seed=0)
        step = envs.step([1, 2])
        assert step.rewards.tolist() == [20, 30]
        assert step.terminations.all()


@every_backend
def test_different_factories_give_different_worlds_of_equal_spaces(options):
    with stretto.make_vec([makes(CountTo, limit) for limit in (1, 2, 3)], 3, **options) as envs:
        envs.reset(seed=0)
        assert envs.step([0, 0, 0]).terminations.tolist() == [True, False, False]


def test_a_list_of_factories_says_how_many_environments_there_are():
    with stretto.make_vec([makes(CountTo, limit) for limit in (1, 2, 3)], backend="serial") as envs:
        assert envs.num_envs == 3
    with stretto.make_vec(CountTo, env_kwargs={"limit": 1}) as envs:
        assert envs.num_envs == 1


@every_backend
def test_the_slot_whose_spaces_differ_is_named(options):
    wide, narrow = makes(Bounded, 9), makes(Bounded, 3)
    for number, makers in (
        (1, [wide, narrow, wide, wide]),
        (2, [wide, wide, narrow, wide]),
        (3, [wide] * 3 + [narrow]),
    ):
        with pytest.raises(stretto.InvalidSpace, match=rf"3.0, .* in slot {number} and .*9.0, .* in slot 0") as refused:
            stretto.make_vec(makers, **options)
        assert "observation_mode='different'" in str(refused.value)
        assert not any("slot" in note for note in getattr(refused.value, "__notes__", ()))


# ---- as in Gymnasium ----


def test_a_render_mode_reaches_every_environment():
    with stretto.make_vec("CartPole-v1", 2, render_mode="rgb_array", backend="serial") as envs:
        assert envs.render_mode == "rgb_array"
        envs.reset(seed=0)
        assert [frame.shape for frame in envs.render()] == [(400, 600, 3)] * 2


@pytest.mark.parametrize(
    ("mode", "words"),
    [("sync", "serial"), ("async", "process with 2"), ("vector_entry_point", "vectorized, in 1 block")],
)
def test_a_vectorization_mode_says_how_they_run(mode, words):
    with stretto.make_vec("CartPole-v1", 2, vectorization_mode=mode, budget=stretto.CpuBudget(2)) as envs:
        assert words in envs.choice
    with stretto.make_vec("CartPole-v1", 2, vectorization_mode=VectorizeMode(mode)) as envs:
        envs.reset(seed=0)


def test_vector_kwargs_are_arguments_of_make_vec_in_another_place():
    given = {"autoreset_mode": "SameStep", "copy": False, "observation_mode": "different", "shared_memory": False}
    with stretto.make_vec([makes(Bounded, 3), makes(Bounded, 9)], vector_kwargs=given, backend="process") as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert envs.observation_space.high.tolist() == [[3.0], [9.0]]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_an_autoreset_mode_has_its_name_or_its_value(mode):
    for spelled in (mode, mode.name, mode.value, mode.name.lower()):
        with stretto.make_vec(Drift, 1, autoreset_mode=spelled, backend="serial") as envs:
            assert envs.metadata["autoreset_mode"] is mode


@every_backend
def test_a_world_whose_reset_has_no_defaults_gets_both_arguments(options):
    with stretto.make_vec(NoDefaults, 3, **options) as envs, stretto.make_vec(Drift, 3, backend="serial") as plain:
        actions = sample_actions(plain, 40)
        play(envs, actions, 0).check_same(play(plain, actions, 0), "a world without defaults, and one with them")
        assert envs.map(lambda env: type(env).__name__) == ("NoDefaults",) * 3
        envs.reset()


def test_such_a_world_can_be_measured_and_checked():
    assert "could not be measured" not in choice_of(NoDefaults, 2)
    check_env(NoDefaults)


class NoDefaults(Drift):
    def reset(self, seed, options):
        return super().reset(seed=seed, options=options)


class Bounded(Drift):
    """Observes one number, up to `high`."""

    def __init__(self, high=1.0):
        super().__init__()
        self.observation_space = spaces.Box(-high, high, (1,), np.float32)

    def see(self):
        return np.array([self.observation_space.high[0] - 1], np.float32)


@every_backend
def test_a_factory_that_draws_on_its_surroundings_carries_them_along(options, monkeypatch, tmp_path):
    monkeypatch.setenv("STRETTO_TEST", "here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "made_just_now.py").write_text("VALUE = 3\n")
    secret = 7

    def factory():
        import os

        import made_just_now

        world = CountTo(secret)
        world.seen = (os.environ["STRETTO_TEST"], os.getcwd(), made_just_now.VALUE)  # noqa: PTH109
        return world

    with stretto.make_vec(factory, 2, **options) as envs:
        assert envs.get_attr("seen") == (("here", str(tmp_path), 3),) * 2
        assert envs.get_attr("limit") == (7, 7)


BAD = {
    "no such id": (("Nothing-v0", 2), {}, stretto.UsageError, "'Nothing-v0' is no registered environment"),
    "no such module": (("no_such_module:X-v0", 2), {}, stretto.UsageError, "no_such_module"),
    "no source": ((3, 2), {}, stretto.UsageError, "a Gymnasium id, .* an EnvSpec, a class or a function .*; got 3"),
    "a list of another length": (([Drift], 2), {}, stretto.UsageError, "got 1 for num_envs=2"),
    "no environments": ((Drift, 0), {}, stretto.InvalidLayout, "num_envs must be at least 1, got 0"),
    "more workers than worlds": (
        (Drift, 2),
        {"backend": "process", "workers": 3},
        stretto.InvalidLayout,
        "got 3 workers for 2 environments; pass workers=2",
    ),
    "no workers": ((Drift, 2), {"workers": 0}, stretto.InvalidLayout, "workers must be from 1"),
    "serial with workers": ((Drift, 2), {"backend": "serial", "workers": 2}, stretto.InvalidLayout, "one worker"),
    "serial, isolated": ((Drift, 2), {"backend": "serial", "isolate": True}, stretto.UsageError, "another process"),
    "no such backend": ((Drift, 2), {"backend": "gpu"}, stretto.UsageError, "backend must be 'auto', 'serial'"),
    "no such transport": ((Drift, 2), {"transport": "air"}, stretto.UsageError, "transport must be one of 'shared'"),
    "no such mode": ((Drift, 2), {"autoreset_mode": "Never"}, stretto.UsageError, "autoreset_mode must be one of"),
    "no such vectorization mode": ((Drift, 2), {"vectorization_mode": "both"}, stretto.UsageError, "one of 'async'"),
    "two ways to run": (
        (Drift, 2),
        {"vectorization_mode": "sync", "backend": "process"},
        stretto.UsageError,
        "'sync' means backend='serial', got backend='process' too",
    ),
    "two render modes": (
        (Drift, 2),
        {"render_mode": "human", "env_kwargs": {"render_mode": "rgb_array"}},
        stretto.UsageError,
        "a render mode must be given once",
    ),
    "no such vector_kwargs": ((Drift, 2), {"vector_kwargs": {"speed": 3}}, stretto.UsageError, "got 'speed'"),
    "vector_kwargs without a place": (
        (Drift, 2),
        {"vector_kwargs": {"max_concurrency": 3}},
        stretto.UsageError,
        "workers= of make_vec says how many .*; leave it out",
    ),
    "an argument of the world": ((Drift, 2), {"size": 7}, stretto.UsageError, r"belongs into env_kwargs={'size': 7}"),
    "no such argument": ((Drift, 2), {"worker": 2}, stretto.UsageError, "did you mean workers"),
    "no such observation mode": ((Drift, 2), {"observation_mode": "any"}, stretto.UsageError, "'same', 'different' or"),
    "different shapes": (
        ([Drift, CountTo],),
        {"observation_mode": "different", "env_kwargs": {}, "backend": "serial"},
        stretto.InvalidSpace,
        "types and shapes .* in slot 1",
    ),
    "no such checks": ((Drift, 2), {"checks": "some"}, stretto.UsageError, "checks must be one of 'first'"),
    "no such answer to a crash": ((Drift, 2), {"on_crash": "cry"}, stretto.UsageError, "on_crash must be one of"),
    "no such generators": ((Drift, 2), {"global_rng": "no"}, stretto.UsageError, "global_rng must be one of"),
    "no world": ((lambda: 5, 2), {"backend": "serial"}, stretto.UsageError, "a world must be a gymnasium.Env"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_in_one_sentence(case):
    args, options, kind, words = BAD[case]
    with pytest.raises(kind, match=words) as refused:
        stretto.make_vec(*args, **options)
    assert isinstance(refused.value, ValueError)


def test_a_factory_that_cannot_be_pickled_is_refused_and_leaves_nothing():
    import threading

    lock = threading.Lock()

    def factory():
        with lock:
            return Drift()

    with pytest.raises(stretto.UsageError, match=r"must be picklable.*cannot pickle"):
        stretto.make_vec(factory, 2, backend="process", workers=2)
    with stretto.make_vec(factory, 2, backend="thread", workers=2) as envs:
        envs.reset(seed=0)


@every_backend
def test_a_world_that_cannot_be_built_says_so_with_its_slot(options):
    with pytest.raises(ValueError, match="the world's own words") as raised:
        stretto.make_vec([Drift, makes(Raiser, -1)], 2, **options)
    assert raised.value.place.slot == 1
    assert raised.value.place.doing == "building"


# ---- auto ----


def choice_of(source, count, **options):
    with stretto.make_vec(source, count, budget=stretto.CpuBudget(2), **options) as envs:
        return envs.choice


def test_auto_says_what_it_chose_and_why():
    assert choice_of(Drift, 1).startswith(
        "serial, because there is only one environment; it was not tried in a process"
    )
    assert choice_of(Drift, 2).startswith("serial, because a step took")
    busy = choice_of(makes(Slow, 0.002, busy=True), 4)
    assert busy.startswith("process with 2 workers, the caller being one, because a step took")
    assert choice_of(makes(Slow, 0.004), 4).startswith("thread with 4 workers, because a step took")
    assert "isolate=True" in choice_of(Drift, 2, isolate=True)
    with stretto.make_vec(Drift, 8, budget=stretto.CpuBudget(1)) as envs:
        assert envs.choice.startswith("serial, because only one core is free; it was not tried in a process of its own")


def test_what_was_asked_for_is_said_to_be():
    assert choice_of(Drift, 2, backend="serial") == "serial, because it was asked for"
    assert choice_of(Drift, 4, backend="process", workers=2) == "process with 2 workers, because it was asked for"
    assert choice_of(Drift, 4, workers=3).startswith("process with 3 workers, ")


def test_the_probe_is_a_world_of_its_own_that_is_thrown_away(tmp_path):
    log = tmp_path / "built"

    class Logs(Drift):
        def __init__(self):
            super().__init__()
            with log.open("a") as file:
                file.write("built\n")

        def close(self):
            with log.open("a") as file:
                file.write("closed\n")

    with stretto.make_vec(Logs, 3, budget=stretto.CpuBudget(2)) as envs:
        assert log.read_text().split() == ["built", "closed", "built", "built", "built"]
        assert np.array_equal(envs.reset(seed=0)[0], rows_of(Drift, 3, backend="serial"))
    assert log.read_text().split().count("closed") == 4


@every_backend
def test_every_world_is_closed_once(options, tmp_path):
    class Closes(Drift):
        def close(self):
            with (tmp_path / "closed").open("a") as file:
                file.write("closed\n")

    with stretto.make_vec(Closes, 5, **options) as envs:
        envs.reset(seed=0)
    envs.close()
    assert (tmp_path / "closed").read_text().split() == ["closed"] * 5


def test_cores_are_taken_from_the_budget_and_given_back():
    budget = stretto.CpuBudget(5)
    with stretto.make_vec(Drift, 4, backend="process", workers=2, budget=budget) as envs:
        assert budget.free == 3
        envs.reset(seed=0)
    assert budget.free == 5


class Treacherous(Drift):
    """Does something bad in its third step."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def move(self, action):
        if self.steps == 3:
            match self.what:
                case "hang":
                    time.sleep(3600)
                case "exit":
                    os._exit(7)
                case "sys.exit":
                    sys.exit(3)
                case "raise":
                    raise ValueError("no such action")
        return super().move(action)


@pytest.mark.parametrize("what", ["hang", "exit", "sys.exit", "raise"])
def test_a_world_that_goes_wrong_while_it_is_measured_takes_nobody_with_it(what):
    with stretto.make_vec(makes(Treacherous, what), 4, budget=stretto.CpuBudget(2)) as envs:
        assert envs.choice.startswith("process with 2 workers, one a free core, ")
        assert "because a world could not be measured" in envs.choice
        # What ended the process in which it was measured is kept out of the caller's.
        ended = what in ("hang", "exit")
        assert ("isolate=True" in envs.choice) == ended
        assert len(envs.worker_pids) == (2 if ended else 1)


def test_a_world_that_takes_long_to_build_makes_one_step_apart_before_it_may_run_in_the_caller(monkeypatch):
    monkeypatch.setattr(autotune, "BUILD_SECONDS", 0.0)
    patient = autotune.probe(makes(Treacherous, "exit"), ({"seed": 0},))
    assert isinstance(patient, float)

    class CrashesAtOnce(Drift):
        def __init__(self):
            super().__init__()
            autotune.BUILD_SECONDS = 0.0  # in the process in which it is tried

        def move(self, action):
            os._exit(7)

    chosen = autotune.choose_backend(CrashesAtOnce, 4, 2, isolate=False)
    assert chosen.isolate
    assert chosen.reason.endswith("its process died while being measured: it exited with code 7")


class Quick(CountTo):
    """Draws from a global generator in every step, which takes next to no time."""

    def step(self, action):
        np.random.random()
        return super().step(action)


@pytest.mark.parametrize(("global_rng", "told"), [("auto", True), ("private", True), ("shared", False)])
def test_what_private_generators_cost_is_counted(global_rng, told, monkeypatch):
    monkeypatch.setattr(autotune, "SWAP_SECONDS", 1.0)
    chosen = autotune.choose_backend(makes(Quick, 5), 4, 2, isolate=False, global_rng=global_rng)
    assert ("and its own random generators take 1 s more" in chosen.reason) is told
    with stretto.make_vec(makes(Quick, 5), 4, global_rng=global_rng, budget=stretto.CpuBudget(2)) as envs:
        assert ("and its own random generators take 1 s more" in envs.choice) is told


def test_a_world_that_ended_its_probe_ends_no_caller_either():
    with stretto.make_vec(makes(Treacherous, "exit"), 4, max_restarts=0, budget=stretto.CpuBudget(2)) as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.WorkerDied, match="exited with code 7"):
            for _ in range(3):
                envs.step([1, 1, 1, 1])


def test_a_number_of_workers_that_is_asked_for_does_not_let_such_a_world_into_the_caller():
    with stretto.make_vec(makes(Treacherous, "exit"), 4, workers=3) as envs:
        assert "isolate=True" in envs.choice
        assert len(envs.worker_pids) == 3


class NeedsATask(TaskWorld):
    """Has no episode without a task."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={"task": options["task"]})


class NeedsASeed(CountTo):
    """Has no episode without a seed."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=int(seed), options=options)


def test_a_world_is_measured_with_the_tasks_and_the_seeds_that_it_will_have():
    for tasks in ([3, 4], lambda slot, episode, stream: int(stream.integers(5))):
        assert "when it was measured" in choice_of(NeedsATask, 2, tasks=tasks)
    assert "when it was measured" in choice_of(NeedsASeed, 2, episode_seeds=True)
    assert "could not be measured" in choice_of(NeedsATask, 2)


def test_what_cannot_be_pickled_stays_in_the_caller():
    lock = threading.Lock()

    def make():
        assert lock
        return Drift()

    with stretto.make_vec(make, 4, budget=stretto.CpuBudget(2)) as envs:
        assert envs.choice.startswith("serial, because what runs in another process must be picklable")


@pytest.mark.parametrize(
    "options",
    [
        {"num_envs": 2.5},
        {"num_envs": "3"},
        {"workers": 2.0},
        {"env_kwargs": [1]},
        {"tasks": 5},
        {"tasks": []},
        {"step_timeout": -1},
        {"step_timeout": "x"},
        {"max_restarts": -1},
        {"replay_limit": -5},
        {"backend": "thread", "isolate": True},
        {"backend": "serial", "isolate": True},
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused_in_one_sentence(options):
    with pytest.raises(stretto.UsageError, match=r"must|needs") as caught:
        stretto.make_vec(Drift, **{"num_envs": 2, **options})
    assert "\n" not in str(caught.value)
