"""Sorrel's experiment with agents that learn in parallel: equal to the bit to one thing after the other."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest

pytest.importorskip("sorrel", reason="Sorrel is not on the path; make test-worlds has it if STRETTO_WORLDS is set")

import torch
from sorrel.utils.logging import Logger

from stretto.adapters.sorrel.missions import environment
from stretto.adapters.sorrel.world import seed_globals
from stretto.budget import NativeThreads
from stretto.errors import RunsHere, UsageError, WorldHung
from stretto.interop.sorrel import ParallelEnvironment
from stretto.seeding import GLOBAL_GENERATORS, PrivateGenerators, SeedTree
from tests.worlds.sorrel.examples import EXAMPLES, with_its_own_eyes
from tests.worlds.sorrel.models import Dying, Faulty, Hanging

HERE = {"parallel_training": False}
WORKERS = {
    "here": HERE,
    "processes": {},
    "three-processes": {"num_workers": 3},
    "threads": {"use_threads": True},
}
every_place = pytest.mark.parametrize("parallel", WORKERS.values(), ids=WORKERS)


@pytest.fixture(autouse=True)
def _same_weights(monkeypatch):
    """Let models begin with the same weights: Sorrel seeds them from the system's own random numbers."""
    monkeypatch.setattr(torch.random, "seed", lambda: 17)


def made(example="treasurehunt", epochs=5, turns=25, **config):
    seed_globals(0)
    settings = {"experiment": {"epochs": epochs, "record_period": 1000, "max_turns": turns}, **config}
    return environment(example, config={**settings, "model": {"epsilon_decay": 0.01, **config.get("model", {})}})


def everything(env):
    """Return all that agents have learned, remember and explore by."""
    found = []
    for agent in env.agents:
        model = agent.model
        memory = {name: value for name, value in vars(model.memory).items() if isinstance(value, np.ndarray | int)}
        found.append(
            [
                {name: value.numpy().tobytes() for name, value in model.state_dict().items()},
                [value.numpy().tobytes() for one in model.optimizer.state.values() for value in one.values()],
                {name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in memory.items()},
                model.epsilon,
            ]
        )
    return found


def run(env, parallel, tmp_path, **options):
    """Run an experiment; return all that it gave."""
    logger = Logger(100)
    envs = ParallelEnvironment(env, parallel, **options)
    envs.run_experiment_parallel(animate=False, logger=logger, output_dir=tmp_path)
    logged = [[float(value) for value in values] for values in (logger.losses, logger.rewards, logger.epsilons)]
    return everything(env), logged, envs.restarts


def one_after_the_other(env, interval=1, overlaps=False):
    """Run an experiment as Sorrel does, with private generators and nothing else of ours."""
    with_its_own_eyes()
    tree = SeedTree(0).child("sorrel")
    streams = [
        [
            PrivateGenerators(tree.child(what, f"agent_{number}"), 0, GLOBAL_GENERATORS)
            for number in range(len(env.agents))
        ]
        for what in ("act", "learn")
    ]
    world = PrivateGenerators(tree.child("world"), 0, GLOBAL_GENERATORS)
    under_way, logged = [], []
    for epoch in range(env.config.experiment.epochs + 1):
        world.run(env.reset)
        for agent, own in zip(env.agents, streams[0], strict=True):
            own.run(agent.model.start_epoch_action, epoch=epoch)
        while env.turn < env.config.experiment.max_turns:
            acting, env.agents = env.agents, []
            world.run(env.take_turn)
            env.agents = acting
            for agent, own in zip(env.agents, streams[0], strict=True):
                own.run(agent.transition, env.world)
        env.world.is_done = True
        losses = []
        if (epoch + 1) % interval == 0:
            for agent, (learned, loss) in zip(env.agents, under_way, strict=False):
                agent.model.load_state_dict(learned.state_dict())
                agent.model.optimizer.load_state_dict(learned.optimizer.state_dict())
                losses.append(loss)
            learners = [copy.deepcopy(agent.model) if overlaps else agent.model for agent in env.agents]
            trained = [own.run(one.train_step) for one, own in zip(learners, streams[1], strict=True)]
            under_way = list(zip(learners, trained, strict=True)) if overlaps else []
            losses = losses if overlaps else trained
        logged.append((float(losses[-1]) if losses else 0.0, env.world.total_reward, env.agents[0].model.epsilon))
        for agent in env.agents:
            agent.model.epsilon_decay(env.config.model.epsilon_decay)
    for agent, (learned, _) in zip(env.agents, under_way, strict=False):
        agent.model.load_state_dict(learned.state_dict())
        agent.model.optimizer.load_state_dict(learned.optimizer.state_dict())
    return everything(env), [list(map(float, values)) for values in zip(*logged, strict=True)]


def test_not_enabled_it_is_sorrels_own_experiment_to_the_bit(tmp_path):
    own, logger = made(), Logger(100)
    asked = {"enabled": False, "parallel_actions": True, "async_learning": True, "train_interval": 4}
    with NativeThreads(1).capped():  # which is faster where cores are busy
        seed_globals(4)
        own.run_experiment(animate=False, logger=logger, output_dir=tmp_path)
        env = made()
        seed_globals(4)
        learned, logged, _ = run(env, {"parallel": asked}, tmp_path)
    assert learned == everything(own)
    assert logged[0] == [float(loss) for loss in logger.losses]
    assert any(logged[0])


@every_place
@pytest.mark.parametrize("interval", [1, 4])
def test_enabled_it_is_the_same_turns_and_trainings_one_after_the_other(parallel, interval, tmp_path):
    with NativeThreads(1).capped():
        expected = one_after_the_other(made(epochs=8), interval)
    assert run(made(epochs=8), {**parallel, "train_interval": interval}, tmp_path)[:2] == expected
    trained = [epoch for epoch, loss in enumerate(expected[1][0]) if loss]
    assert trained == ([3, 7] if interval == 4 else [2, 3, 4, 5, 6, 7, 8])


@every_place
def test_learning_that_overlaps_is_reproducible_and_one_interval_behind(parallel, tmp_path):
    with NativeThreads(1).capped():
        expected = one_after_the_other(made(epochs=6), overlaps=True)
    assert run(made(epochs=6), {**parallel, "async_learning": True}, tmp_path)[:2] == expected
    assert expected[1][0][:3] == [0.0, 0.0, 0.0]
    assert all(expected[1][0][3:])


@pytest.mark.parametrize("example", EXAMPLES)
def test_all_examples_learn_the_same_wherever_they_train(example, tmp_path):
    turns = {"treasurehunt_threadsafe": 20}.get(example, 40)
    few = {"cleanup": {"agent": {"agent": {"num": 3}}}, "tag": {"agent": {"num_agents": 3}}}.get(example, {})
    runs = [
        run(made(example, epochs=2, turns=turns, **few), {**parallel, "num_workers": number}, tmp_path)
        for parallel, number in ((HERE, None), ({}, 3))
    ]
    assert runs[0] == runs[1]
    assert any(runs[0][1][0])


def test_agents_keep_their_models_buffers_and_weights_as_objects(tmp_path):
    env = made()
    before = [(agent.model, agent.model.memory, list(agent.model.parameters())) for agent in env.agents]
    run(env, {"num_workers": 3}, tmp_path)
    for agent, (model, memory, weights) in zip(env.agents, before, strict=True):
        assert agent.model is model
        assert agent.model.memory is memory
        assert all(one is other for one, other in zip(model.parameters(), weights, strict=True))
        optimized = [one for group in model.optimizer.param_groups for one in group["params"]]
        assert all(one is other for one, other in zip(optimized, model.qnetwork_local.parameters(), strict=True))


def spoil(env, kind, tmp_path):
    """Let the model of the second agent be at fault."""
    model = env.agents[1].model
    model.__class__ = kind
    model.once, model.caller = str(tmp_path / kind.__name__), os.getpid()
    return env


@pytest.mark.parametrize("loop", [{}, {"async_learning": True}], ids=["sync", "pipelined"])
@pytest.mark.parametrize(("kind", "limit"), [(Dying, 60.0), (Hanging, 10.0)])
def test_agents_of_a_lost_process_are_trained_again_from_their_state(kind, limit, loop, tmp_path):
    expected = run(made(), {**loop, **HERE}, tmp_path)
    learned, logged, restarts = run(spoil(made(), kind, tmp_path), loop, tmp_path, limit_seconds=limit)
    assert restarts == 1
    assert (learned, logged) == expected[:2]


def test_a_training_that_hangs_every_time_is_told_with_agent_and_epoch(tmp_path):
    env = spoil(made(), Hanging, tmp_path)
    env.agents[1].model.once = str(tmp_path / "nowhere" / "never")
    env.agents[1].model.__class__ = type("Hanging", (Hanging,), {"train_step": Hanging.fault})
    with pytest.raises(WorldHung, match=r"no answer for 0.5 s while training after epoch 0 \(agent_1\)"):
        run(env, {}, tmp_path, limit_seconds=0.5)


@pytest.mark.parametrize("parallel", [{}, {"async_learning": True}], ids=["sync", "pipelined"])
def test_what_a_training_raises_names_agent_and_epoch(parallel, tmp_path):
    with pytest.raises(ValueError, match="these weights are bad") as raised:
        run(spoil(made(), Faulty, tmp_path), parallel, tmp_path)
    assert "training after epoch 3 (worker 0, agent agent_1)" in "".join(raised.value.__notes__)


def test_what_an_agent_raises_in_its_turn_names_it_and_the_epoch(tmp_path):
    env = made()
    env.agents[1].act = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError) as raised:
        run(env, {"parallel_training": False}, tmp_path)
    assert raised.value.__notes__ == ["while playing epoch 0 (agent agent_1, step 1)"]


def test_a_model_that_cannot_leave_trains_in_the_callers_process_with_one_result(tmp_path):
    expected, env = run(made(), HERE, tmp_path), made()
    env.agents[0].model.game = env.world
    with pytest.warns(RunsHere, match="agent_0 trains in the caller's process: .* refers to the game itself"):
        assert run(env, {}, tmp_path) == expected
    env = made()
    env.agents[0].model.game = env.world
    with (
        pytest.warns(RunsHere),
        pytest.raises(UsageError, match="async_learning needs models that can be copied"),
    ):
        run(env, {"async_learning": True}, tmp_path)


def test_a_turn_of_ones_own_is_run_with_agents_that_draw_their_own(tmp_path):
    expected, env = run(made(), HERE, tmp_path), made()

    class Counting(type(env)):
        turns = 0

        def take_turn(self):
            self.turns += 1
            super().take_turn()

    env.__class__ = Counting
    assert run(env, HERE, tmp_path) == expected
    assert env.turns == 6 * 25


def test_agents_are_saved_where_the_configuration_says_so(tmp_path):
    env = made(epochs=0, model={"save_weights": True})
    run(env, HERE, tmp_path)
    saved = sorted((tmp_path / "checkpoints").iterdir())
    assert [path.name.rpartition("-agent-")[2] for path in saved] == ["0.pkl", "1.pkl"]
    loaded = torch.load(saved[0], weights_only=False)["local"]
    assert all(
        torch.equal(value, loaded[name]) for name, value in env.agents[0].model.qnetwork_local.state_dict().items()
    )


def test_wrong_and_contradicting_settings_are_refused():
    env = made()
    with pytest.raises(UsageError, match="train_intervall"):
        ParallelEnvironment(env, {"train_intervall": 4})
    with pytest.raises(UsageError, match="two settings must not contradict each other"):
        ParallelEnvironment(env, {"use_threads": True, "parallel_training": False}).run_experiment_parallel()


def test_attributes_are_those_of_the_environment():
    env = made()
    parallel = ParallelEnvironment(env)
    assert parallel.agents is env.agents
    assert parallel.world is env.world
