"""What missions are called: their episodes follow from the name, and the name never from a path."""

from __future__ import annotations

import importlib
import sys

import pytest

import stretto
from stretto.errors import UsageError
from stretto.missions.resolve import find_missions

GAME = "import gymnasium\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n"


def names(*texts):
    return [mission.name for mission in find_missions(list(texts))]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a game, which is the current one; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("game", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "game.py").write_text(GAME)
    return tmp_path


def episodes(text_or_object, **options):
    report = stretto.evaluate(text_or_object, "random", episodes=2, steps=4, jobs=0, **options)
    return [(record.mission, record.seed, record.rewards) for record in report.records]


def test_a_mission_has_one_name_and_the_same_episodes_however_its_path_is_written(folder, monkeypatch):
    expected = episodes("game.py:make")
    assert expected[0][0] == "game:make"
    assert episodes("./game.py:make") == episodes(f"{folder}/game.py:make") == expected
    monkeypatch.syspath_prepend(folder)
    assert episodes("game:make") == expected
    assert episodes(importlib.import_module("game").make) == expected


def test_one_mission_that_is_named_twice_is_played_once(folder):
    assert names("game.py:make", "./game.py:make", str(folder / "game.py:make")) == ["game:make"]


def test_different_missions_of_one_name_are_refused_unless_one_gives_itself_another(folder):
    (folder / "more").mkdir()
    (folder / "more/game.py").write_text(GAME)
    with pytest.raises(UsageError, match=r"got 'game:make' for different ones.*as in more/game\.py:make,name=other"):
        names("game.py:make", "more/game.py:make")
    assert names("game.py:make", "more/game.py:make,name=other") == ["game:make", "other"]


def test_what_gymnasium_and_pettingzoo_have_is_called_by_its_own_name_and_version():
    with pytest.warns(UserWarning, match="latest versioned"):
        assert names("gym:CartPole") == ["gym:CartPole-v1"]
    assert names("CartPole-v1", "gym:CartPole-v1") == ["gym:CartPole-v1"]
    assert names("pz:pettingzoo.butterfly.pistonball_v6", "pz:butterfly.pistonball_v6") == [
        "pz:butterfly.pistonball_v6"
    ]


def test_a_mission_of_a_file_that_is_yaml_is_found_by_either_name(folder):
    (folder / "missions.yaml").write_text("- mission: game.py:make\n")
    assert names("missions.yaml:game.py:make") == names("missions.yaml:game:make") == ["game:make"]


@pytest.mark.parametrize("where", ["__init__", "world_v0"])
def test_a_module_of_pettingzoos_form_that_fails_to_import_is_told_by_its_own_error(folder, monkeypatch, where):
    (folder / "broken").mkdir()
    for name in ("__init__", "world_v0"):
        (folder / f"broken/{name}.py").write_text("import nowhere_to_be_found\n" if name == where else "")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere_to_be_found'"):
        stretto.evaluate("pz:broken.world_v0", "random", episodes=1, jobs=1)
