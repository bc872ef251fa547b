"""Short names: ours come first, other people's mistakes are told and hide nothing, and a typo is answered."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from stretto.registry import Known, first_line, installed, known, near, near_or_all

OURS = [Known("json", "ours", "stretto.json", 1)]


@pytest.fixture
def register(monkeypatch):
    """Let installed packages have these entry points."""

    def add(**points: str) -> None:
        found = [EntryPoint(name, value, "things") for name, value in points.items()]
        monkeypatch.setattr("stretto.registry.entry_points", lambda group: found if group == "things" else [])

    return add


def one_each(point, found):
    return [Known(point.name, first_line(found), point.value, found)]


def test_ours_and_those_of_packages_are_listed_with_their_summaries(register):
    register(dump="json:dump")
    there = known(OURS, "things", one_each)
    assert list(there) == ["json", "dump"]
    assert there["dump"].summary.startswith("Serialize ``obj``")
    assert (there["json"].package, there["dump"].package) == ("", "json:dump")
    assert list(known(OURS, "others", one_each)) == ["json"]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:no_such_thing", "AttributeError: module 'json' has no attribute 'no_such_thing'"),
    ],
)
def test_what_cannot_be_imported_is_listed_with_its_error_and_hides_no_other(register, value, told):
    register(broken=value, dump="json:dump")
    there = known(OURS, "things", one_each)
    assert (there["broken"].error, there["broken"].value) == (told, None)
    assert there["dump"].error is None


@pytest.mark.parametrize("raised", [KeyError("summary"), SystemExit(3), RuntimeError("bad\n  day")], ids=repr)
def test_so_is_what_cannot_be_read(register, raised):
    def read(point, found):
        yield Known("early", "", "")
        raise raised

    register(odd="json")
    there = known(OURS, "things", read)
    assert list(there) == ["json", "odd"]
    assert there["odd"].error == " ".join(f"{type(raised).__name__}: {raised}".split())


def test_a_name_that_is_taken_stays_with_whom_it_belongs_to_and_the_other_is_told(register):
    register(json="shlex:quote", mine="shlex:join")
    there = known(OURS, "things", one_each, remedy="write {target}")
    assert there["json"].value == 1
    assert there["shlex:quote"].error == "the name json is taken by stretto.json; write shlex:quote"
    assert (there["shlex:quote"].name, there["shlex:quote"].value) == ("shlex:quote", None)
    assert there["mine"].error is None


def test_an_entry_point_may_give_several_of_which_some_are_taken(register):
    register(pack="shlex")
    there = known(OURS, "things", lambda point, found: [Known(name, "", point.name, 2) for name in ("json", "new")])
    assert {name: one.error for name, one in there.items()} == {
        "json": None,
        "shlex:json": "the name json is taken by stretto.json; its package must choose another",
        "new": None,
    }


def test_what_is_installed_can_be_found_without_an_import_and_the_first_of_a_name_counts(register, monkeypatch):
    twice = [EntryPoint("broken", "no_such_module:first", "things"), EntryPoint("broken", "no:second", "things")]
    monkeypatch.setattr("stretto.registry.entry_points", lambda group: twice)
    assert installed("things")["broken"].attr == "first"


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("randon", "; did you mean random?"),
        ("RANDOM", "; did you mean random?"),
        ("found", "; did you mean foundry_1 or foundry_2 or foundry_3?"),
        ("Foundy_2", "; did you mean foundry_2 or foundry_4 or foundry_3?"),
        ("", ""),
        ("xyzzy", ""),
    ],
)
def test_names_like_the_one_that_nobody_knows_are_offered_three_at_most(name, offered):
    assert near(name, ["random", "noop", "foundry_1", "foundry_2", "foundry_3", "foundry_4"]) == offered


def test_where_none_is_like_it_all_are_told():
    assert near_or_all("xyzzy", (name for name in ("random", "noop"))) == "; known are random, noop"
    assert near_or_all("nop", ["random", "noop"]) == "; did you mean noop?"
    assert near_or_all("xyzzy", []) == "; known are none"
