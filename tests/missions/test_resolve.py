"""From what a user writes to missions: names, patterns, environments of others, files."""

from __future__ import annotations

import sys

import pytest

from stretto.errors import UsageError
from stretto.identity.source import find_module
from stretto.missions.registry import known_missions
from stretto.missions.resolve import find_missions


def names(*texts, **options):
    return [mission.name for mission in find_missions(texts, **options)]


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return (tmp_path / "missions.yaml").write_text


def test_names_and_patterns_stand_for_missions_each_once_and_in_their_order():
    assert names("foundry_2", "foundry_[12]", "gym:CartPole-v1") == ["foundry_2", "foundry_1", "gym:CartPole-v1"]


def test_changes_reach_the_world_and_its_name():
    (mission,) = find_missions(["foundry_1"], cogs=3, variants=["rich"], map_seed=8)
    assert mission.name == "foundry_1+rich"
    assert mission.details["map_seed"] == 8
    assert len(mission.make().possible_agents) == 3


def test_what_a_world_does_not_take_is_refused_with_what_it_takes():
    with pytest.raises(UsageError, match=r"got cogs, variants for gym:CartPole-v1, which takes sutton_barto_reward"):
        find_missions(["gym:CartPole-v1"], cogs=3, variants=["rich"])
    with pytest.raises(UsageError, match=r"got cog for foundry_1, which takes .*; did you mean cogs"):
        find_missions("foundry_1", env_kwargs={"cog": 3})


def test_an_entry_of_a_file_says_more_than_the_command_line(write):
    write("- {mission: foundry_1, cogs: 2}\n- {mission: foundry_2, name: mine, steps: 5, default_action: 0}\n")
    first, second = find_missions(["missions.yaml"], cogs=5)
    assert [len(one.make().possible_agents) for one in (first, second)] == [2, 5]
    assert (second.name, second.max_steps, second.has_default_action, second.default_action) == ("mine", 5, True, 0)
    assert names("missions.yaml:mine") == ["mine"]
    assert names("missions.yaml:foundry_1") == ["foundry_1"]


def test_one_of_a_pattern_in_a_file_has_the_name_of_its_mission(write):
    write("mission: foundry_*\nvariants: [rich]\n")
    assert names("missions.yaml:foundry_3+rich") == ["foundry_3+rich"]
    with pytest.raises(UsageError, match=r"no mission in missions\.yaml is called 'foundry_9'"):
        find_missions(["missions.yaml:foundry_9"])


def test_code_that_a_file_names_is_only_run_if_that_is_allowed_or_if_it_is_not_asked_for(write):
    write("- {mission: worlds.py:World, name: mine}\n- mission: foundry_1\n")
    with pytest.raises(UsageError, match="pass --allow-import if you trust it"):
        find_missions(["missions.yaml"], allow_import=False)
    with pytest.raises(UsageError, match=r"'worlds\.py' does not exist"):
        find_missions(["missions.yaml:mine"])
    assert names("missions.yaml:foundry_1", allow_import=False) == ["foundry_1"]


@pytest.mark.parametrize("text", ["pz:this", "gym:this:Zen-v0", "this:Zen-v0", "this:Zen"])
def test_a_module_that_a_file_names_is_only_imported_if_that_is_allowed(write, text):
    write(f"- mission: {text}\n- mission: gym:CartPole-v1\n")
    with pytest.raises(UsageError, match=f"names code of its own, '{text}'; pass --allow-import if you trust it"):
        find_missions(["missions.yaml"], allow_import=False)
    assert "this" not in sys.modules
    assert names("missions.yaml:gym:CartPole-v1", allow_import=False) == ["gym:CartPole-v1"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{mission: foundry_1", "must be readable YAML"),
        ("- foundry_1", "must be a mapping with the key 'mission', got 'foundry_1'"),
        ("", "must be a mapping with the key 'mission', got None"),
        (
            "{mission: foundry_1, coggs: 3}",
            r"no key of a mission in missions.yaml is called 'coggs'; did you mean cogs",
        ),
        ("{mission: foundry_1, env_kwargs: 7}", "env_kwargs .* must be a mapping from names to values, got 7"),
        ("{mission: foundry_1, name: [a]}", r"name .* must be a text, got \['a'\]"),
        ("{mission: foundry_1, variants: rich}", r"must be a list of names, got 'rich'; write \[rich\]"),
        ("{mission: foundry_*, name: mine}", "must be for one mission, got 'mine' for 'foundry_\\*'"),
        (
            "[{mission: foundry_1}, {mission: foundry_1, cogs: 2}]",
            "two missions must not have one name, got 'foundry_1'",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_sentence(write, content, told):
    write(content)
    with pytest.raises(UsageError, match=told) as refused:
        find_missions(["missions.yaml"])
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(write):
    with pytest.raises(UsageError, match=r"gone\.yaml is not: No such file"):
        find_missions(["gone.yaml"])


def test_missions_of_cyborg_are_listed_only_where_it_is_installed():
    listed = {name for name in known_missions() if name.startswith("cage2_")}
    there = find_module("CybORG") is not None
    assert listed == ({"cage2_b_line", "cage2_meander", "cage2_sleep"} if there else set())
    if not there:
        with pytest.raises(UsageError, match="'cage2_b_line' needs CybORG, which is not installed"):
            find_missions("cage2_b_line")


def test_examples_of_sorrel_are_listed_only_where_it_is_installed():
    there = find_module("sorrel") is not None
    assert ("sorrel_treasurehunt" in known_missions()) is there
    if not there:
        with pytest.raises(UsageError, match="'sorrel_tag' needs sorrel, which is not installed; put its folder on"):
            find_missions("sorrel_tag")


def test_worlds_of_envpool_need_the_package():
    if find_module("envpool") is None:
        with pytest.raises(UsageError, match="needs the package envpool, which is not installed"):
            find_missions("envpool:CartPole-v1")
    else:
        assert names("envpool:CartPole-v1") == ["envpool:CartPole-v1"]


def test_a_module_of_pettingzoo_without_a_parallel_environment_has_its_other_one():
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed")
    (mission,) = find_missions("pz:classic.tictactoe_v3")
    assert hasattr(mission.make(), "agent_iter")
    (mission,) = find_missions("pz:mpe2.simple_spread_v3")
    assert not hasattr(mission.make(), "agent_iter")
