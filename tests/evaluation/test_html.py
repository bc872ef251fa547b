"""The page of a report: that its texts have room, and that what it says of its figures is so."""

from __future__ import annotations

import re

import pytest

from stretto.evaluation.records import EpisodeFailure, EpisodeRecord
from stretto.evaluation.report.page_elements import MOST_ROWS
from stretto.evaluation.report.report import Report

LONG = "class=players.py:Other,kw.x=1,kw.a_long_argument_name='some rather long value'"
FAILURE = EpisodeFailure("ValueError", "no", None, None, None, "", "")


def one(mission="m", label="a", episode=0, reward=1.0, **others):
    return EpisodeRecord(mission, label, episode, 0, 5, {"x": reward}, {"x": label}, **others)


def section(report, name):
    (text,) = re.findall(f'<section id="{name}">(.*?)</section>', report.to_html(), flags=re.DOTALL)
    return text


def rows(table):
    """The cells of every row of a table's body."""
    body = table.partition("<tbody>")[2].partition("</tbody>")[0].replace("<wbr>", "")
    return [re.findall(r"<td[^>]*>(.*?)</td>", line) for line in body.splitlines() if line]


def below(plot):
    """Whether each row's figures stand below its name; otherwise they end on its line, at the other side."""
    found = re.findall(r'<text class="name" y="(\d+)">[^<]*</text><text class="soft" (x="100%" )?y="(\d+)"', plot)
    assert all((int(figures) == int(name)) == bool(right) for name, right, figures in found)
    return [int(figures) > int(name) for name, _, figures in found]


def test_statistics_by_agent_have_a_table_where_there_are_several_agents():
    far = [{"cog_2": 1.0, "cog_10": 4.0}, {"cog_2": 2.0, "cog_10": None}]
    several = [one(episode=i, statistics={"far": 2.0}, agent_statistics={"far": each}) for i, each in enumerate(far)]
    alone = one(mission="z", statistics={"far": 2.0}, agent_statistics={"far": {"only": 2.0}})
    page = Report.of([*several, alone], {})
    first, second = section(page, "statistics").split("<h3>z</h3>")
    of_episodes, of_agents = first.split("<h4>By agent</h4>")
    assert rows(of_episodes) == [["far", "2.00"]]
    assert rows(of_agents) == [["far", "cog_2", "1.50"], ["far", "cog_10", "4.00"]]
    assert "By agent" not in second


def test_in_a_plot_figures_stand_below_a_name_that_leaves_them_no_room():
    values = [-1.2e7, -3.4e7, -5.6e7]
    short, long = (
        Report.of([one(label=label, episode=i, reward=value) for i, value in enumerate(values)], {})
        for label in ("random", "WWWWWWWWWWWWWWWWWWWWWWWW")
    )
    assert "-3.4e7</td><td>[-5.6e7, -1.2e7]" in section(short, "results")
    assert below(section(short, "rewards")) == [False]
    assert below(section(long, "rewards")) == [True]
    pair = [one(label=label, episode=i, reward=v) for label in ("W" * 30, "M" * 30) for i, v in enumerate(values)]
    assert below(section(Report.of(pair, {}), "improvement")) == [True, True]


def test_names_of_pairs_are_as_long_as_they_have_room():
    def names(first, second):
        pair = [one(label=label, episode=i, reward=i) for label in (first, second) for i in range(3)]
        return re.findall(r'<text class="name" y="14">([^<]*)<', section(Report.of(pair, {}), "improvement"))[0]

    assert names("mine.py:Left", "mine.py:Right") == "mine.py:Left vs mine.py:Right"
    assert names("a_policy_with_a_long_name", "mine.py:Left") == "a_polic…g_name vs mine.py:Left"
    assert names("W" * 30, "M" * 30) == "MMMM…MMMM vs WWWWW…WWWW"


def test_the_plan_shows_nothing_that_is_empty():
    assert "worlds" not in section(Report.of([one()], {"seed": 0, "worlds": {}}), "plan")


def test_in_a_mix_who_is_better_is_so_by_a_reward_since_there_are_no_scores():
    rewards, policies = {"x": 1.0, "y": 4.0}, {"x": "one", "y": "two"}
    records = [EpisodeRecord("m", "one + two", episode, 0, 5, rewards, policies) for episode in range(9)]
    assert "two beats one in 100% of 9 episodes (70 to 100%), by a reward of 3.00" in Report.of(records, {}).to_html()


def test_policies_with_the_same_results_did_equally_well():
    report = Report.of([one(label=label, episode=i, reward=i) for label in "ab" for i in range(9)], {})
    assert "<h1>a and b did equally well</h1>" in report.to_html()


def test_who_prints_a_report_is_told_why_the_first_episode_failed():
    report = Report.of([one(), one(episode=1, failure=FAILURE)], {})
    assert str(report) == f"{report.table()}\n1 of 2 episodes failed; the first: no"
    assert str(Report.of([one()], {})) == Report.of([one()], {}).table()


def test_only_many_rows_scroll_in_a_box():
    few = Report.of([one(mission=f"m{i:02}") for i in range(MOST_ROWS)], {})
    many = Report.of([one(mission=f"m{i:02}") for i in range(MOST_ROWS + 1)], {})
    for report, box in ((few, "scroll"), (many, "scroll high")):
        table = section(report, "results")
        assert [row[0] for row in rows(table)][:2] == ["m00", "m01"]
        assert f'<div class="{box}"' in table


def test_only_a_long_name_is_broken_into_lines_and_has_a_column_that_is_not_too_narrow():
    records = [one("foundry.far:away"), *(one(label=LONG, episode=i, reward=(2 + i) * -1.1e-7) for i in range(3))]
    table = section(Report.of(records, {}), "results")
    assert '<td class="left">foundry.far:away</td>' in table
    assert f'<td class="left long">{LONG[:6]}<wbr>' in table
    assert "<td>[-4.4e-7, -2.2e-7]</td>" in table
    assert ".long{min-width:" in Report.of([], {}).to_html()


def test_the_names_of_policies_above_statistics_are_short_if_that_tells_them_apart():
    def heads(*labels):
        table = section(Report.of([one(label=label, statistics={"ore": 1.0}) for label in labels], {}), "statistics")
        found = re.findall("<th[^>]*>(.*?)</th>", table.replace("<wbr>", "").replace("&#x27;", "'"))
        return found[1:]

    assert heads("a", LONG) == ["a", LONG[:20] + "…" + LONG[-19:]]
    other = LONG.replace("kw.x=1", "kw.x=2")
    assert heads(LONG, other) == [LONG, other]


@pytest.mark.parametrize("failed", ["exclude", "worst"])
def test_what_a_page_says_about_failed_episodes_is_what_is_counted(failed):
    hopeless = [one(label="hopeless", episode=i, failure=FAILURE) for i in range(4)]
    shaky = [one(label="shaky", episode=i, reward=2.0, failure=FAILURE if i == 0 else None) for i in range(4)]
    records = [*(one(label="firm", episode=i, reward=5.0) for i in range(4)), *shaky, *hopeless]
    records.append(one("lost", "shaky", failure=FAILURE))
    table = section(Report.of(records, {}, failed=failed, labels=["firm", "shaky", "hopeless"]), "results")
    counted = {(row[0], row[1]): (row[2], row[3]) for row in rows(table)}
    if failed == "exclude":
        assert "left out for all of them. A policy without any result on a mission is ignored there." in table
        assert counted["m", "firm"] == ("3", "5.00")
        assert counted["m", "shaky"] == ("3", "2.00")
        assert counted["m", "hopeless"] == ("0", "-")
    else:
        assert (
            "counts as the worst reward that anybody got on its mission; where nobody got one, it is left out" in table
        )
        assert counted["m", "hopeless"] == ("4", "2.00")
        assert counted["lost", "shaky"] == ("0", "-")
