"""Policies of cogames, whatever they keep and wherever they choose: every episode is its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("cogames", reason="cogames is not installed; make test-worlds has it")

from mettagrid.policy.policy_env_interface import PolicyEnvInterface

from stretto.adapters.cogames.missions import make
from stretto.errors import UsageError
from stretto.evaluation.evaluate import evaluate
from stretto.policies.cogames import _Rows, as_ours
from stretto.policies.loading import load_policy
from stretto.policies.spec import find_policies
from tests.worlds.cogames import players

PLAYERS = Path(__file__).parent / "players.py"
STEPS = 12


def played(policy, **changes):
    usual = {"episodes": 5, "steps": STEPS, "cogs": 4, "jobs": 0, "seed": 3}
    report = evaluate("machina_1", policy, **{**usual, **changes})
    assert [record.failure for record in report.records] == [None] * len(report.records)
    return [(record.episode, record.rewards, record.statistics, record.agent_statistics) for record in report.records]


@pytest.mark.parametrize("name", ["Clockwork", "Counting", "Rows", "CountingRows"])
def test_a_policy_does_the_same_wherever_its_agents_choose(name):
    alone = played(f"{PLAYERS}:{name}")
    assert played(f"{PLAYERS}:{name}", jobs=2, strategy="processes", parallel_policy=True) == alone
    assert played(f"{PLAYERS}:{name}", reverse=True, only=[4, 1], strategy="threads") == [alone[1], alone[4]]


def test_generators_that_the_clock_seeds_are_seeded_by_the_episode():
    assert played(f"{PLAYERS}:Clockwork", seed=3) != played(f"{PLAYERS}:Clockwork", seed=4)


def test_random_is_cogames_own_on_its_missions_and_ours_elsewhere():
    assert find_policies("random", "cogames")[0].target == "mettagrid.policy.random_agent:RandomMultiAgentPolicy"
    assert find_policies("random")[0].target == "stretto.policies.builtin:Random"
    assert played("random") == played("random", jobs=2)


def test_specs_are_written_as_for_cogames():
    (spec,) = find_policies("class=random,proportion=3,kw.vibe_action_p=0.1,name=calm", "cogames")
    assert (spec.name, spec.proportion, spec.kwargs) == ("calm", 3.0, {"vibe_action_p": "0.1"})
    assert find_policies("starter:2", "cogames")[0].proportion == 2.0
    with pytest.raises(UsageError, match="data must exist"):
        find_policies("class=starter,data=nowhere.pt", "cogames")
    with pytest.raises(UsageError, match="startr"):
        find_policies("startr", "cogames")


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "bundle"
    folder.mkdir()
    shutil.copy(PLAYERS, folder / "bundled_players.py")
    (folder / "policy_spec.json").write_text(json.dumps({"class_path": "bundled_players.Rows"}))
    return folder


def test_bundles_are_folders_and_zip_files(bundle):
    expected = played(f"{PLAYERS}:Rows", episodes=2)
    assert played(str(bundle), episodes=2, jobs=1) == expected
    archive = shutil.make_archive(str(bundle), "zip", bundle)
    assert played(f"{archive},proportion=2", episodes=2, jobs=1) == expected


def test_a_policy_whose_rows_stand_alone_is_asked_for_many_agents_and_episodes_at_once(monkeypatch):
    shapes = []

    class Watched(players.Rows):
        def step_batch(self, raw_observations, raw_actions):
            shapes.append(raw_observations.shape)
            super().step_batch(raw_observations, raw_actions)

    monkeypatch.setattr(players, "Watched", Watched, raising=False)
    Watched.__qualname__, Watched.__module__ = "Watched", players.__name__
    played(Watched, episodes=4)
    in_episodes = shapes[-STEPS:]
    assert set(in_episodes) == {(16, 500, 3)}


def test_a_policy_that_keeps_something_is_not():
    world = make("machina_1", cogs=4, max_steps=STEPS).spec()

    def loaded(kind):
        return as_ours(world, kind, kind.__name__)

    assert isinstance(loaded(players.Rows), _Rows)
    assert not isinstance(loaded(players.CountingRows), _Rows)
    declared = type("Declared", (players.CountingRows,), {"rows_interchangeable": True})
    assert isinstance(loaded(declared), _Rows)


def test_a_policy_of_cogames_is_refused_elsewhere():
    from stretto.adapters.agents import as_agents
    from stretto.games.foundry import Foundry

    (spec,) = find_policies(players.Looking)
    with pytest.raises(UsageError, match="missions of cogames alone"):
        load_policy(spec, as_agents(Foundry()).spec())


# ---- names known from cogames ----


@pytest.mark.parametrize("name", ["PerAgentSubprocessWrapper", "PerAgentThreadWrapper", "PerAgentBatchWrapper"])
def test_a_wrapped_policy_does_the_same_in_cogames_own_rollouts(name):
    from mettagrid.runner.rollout import single_episode_rollout

    from stretto.interop import cogames

    config = make("machina_1", cogs=4, max_steps=STEPS).config
    info = PolicyEnvInterface.from_mg_cfg(config)

    def results(policy):
        found, _ = single_episode_rollout(
            [policy],
            [0] * 4,
            config,
            seed=42,
            max_action_time_ms=10_000,
            render_mode="none",
            autostart=False,
            capture_replay=False,
        )
        return found.rewards, found.stats

    expected = results(players.Looking(info))
    wrapped = cogames.WrappedMultiAgentPolicy(players.Looking(info), getattr(cogames, name), cores=2)
    try:
        assert results(wrapped) == expected
        assert results(wrapped) == expected
    finally:
        wrapped.close()


def test_a_policy_that_cannot_be_sent_is_wrapped_all_the_same():
    from stretto.errors import RunsHere
    from stretto.interop.cogames import WrappedMultiAgentPolicy

    stuck = players.Looking(PolicyEnvInterface.from_mg_cfg(make("machina_1", cogs=4).config))
    stuck.lock = (one for one in ())
    with pytest.warns(RunsHere, match="cannot be sent"):
        WrappedMultiAgentPolicy(stuck).close()
