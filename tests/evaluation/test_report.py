"""Reports: the files that an evaluation leaves, and the page among them."""

from __future__ import annotations

import base64
import csv
import dataclasses
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import stretto
from stretto.errors import UsageError
from stretto.evaluation.films.film_files import film_path
from stretto.evaluation.records import EpisodeFailure, EpisodeRecord
from stretto.evaluation.report.failure_section import MOST_GROUPS
from stretto.evaluation.report.plots import MOST_POINTS
from stretto.evaluation.report.report import Report
from stretto.evaluation.report.wording import counted, listed, numbers_text, short_number, shorten

MISSIONS = ["small", "large <wide>", "far & away"]
LABELS = ["<script>alert(1)</script>", "random", "b" * 60]
SECTIONS = ["failures", "results", "comparison", "improvement", "rewards", "statistics", "timing", "plan"]
FILES = ["episodes.csv", "episodes.jsonl", "report.html", "summary.json"]
EMPTY_ELEMENTS = {"meta", "br", "wbr", "line", "rect", "path", "img"}


def record(mission, label, episode, clock=1.0):
    rng = np.random.default_rng([MISSIONS.index(mission), LABELS.index(label), episode])
    broken = rng.random() < 0.1
    failure = EpisodeFailure(
        kind="ValueError",
        message="<b>no</b> \x1b[31m \udc80",
        policy=label,
        agent="x",
        step=3,
        traceback="Traceback:\n  <module>",
        reproduce=f"stretto evaluate '{mission}' --episode {episode}",
    )
    return EpisodeRecord(
        mission=mission,
        label=label,
        episode=episode,
        seed=episode,
        steps=int(rng.integers(5, 50)),
        rewards={} if broken else {"x": float(rng.normal()), "y": float(rng.normal())},
        policies={"x": label, "y": label},
        statistics={"ore<": float(rng.integers(9))},
        overdue={"x": 1},
        failure=failure if broken else None,
        timing={"seconds": clock * float(rng.random()), "worker": int(clock)},
    )


def made(clock=1.0, count=12, **others):
    records = [record(m, label, i, clock) for i in range(count) for label in LABELS for m in MISSIONS]
    invocation = {"began": f"2031-01-0{clock:.0f}", "command": "stretto eval <x>"}
    timing = {"invocations": [invocation], "seconds": clock}
    plan = {"seed": 3, "missions": MISSIONS, "note": "</dl><script>", "timing": timing}
    return Report.of(records, plan, missions=MISSIONS, labels=LABELS, **others)


class Page(HTMLParser):
    """Reads a page strictly: every element that is opened is closed, in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in EMPTY_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def values(self, name):
        return [value for attribute, value in self.attributes if attribute == name]


def test_a_report_is_the_same_after_it_was_saved_and_loaded(tmp_path):
    report = made()
    assert report.save(tmp_path / "new" / "folder") == tmp_path / "new" / "folder"
    assert Report.load(tmp_path / "new" / "folder") == report


def test_a_loaded_report_saves_the_same_files(tmp_path):
    made().save(tmp_path / "first")
    Report.load(tmp_path / "first").save(tmp_path / "second")
    for name in FILES:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_the_order_of_the_records_does_not_change_a_report():
    report = made()
    again = Report.of(reversed(report.records), report.plan, missions=MISSIONS, labels=LABELS)
    assert again == report


def test_episodes_are_in_the_order_of_missions_labels_and_numbers(tmp_path):
    made().save(tmp_path)
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [(one["mission"], one["label"], one["episode"]) for one in found] == [
        (mission, label, episode) for mission in MISSIONS for label in LABELS for episode in range(12)
    ]
    assert lines == [json.dumps(one, sort_keys=True) for one in found]


def without_timing(name, text):
    """A file's text without all that may depend on the clock."""

    def drop(value):
        if isinstance(value, dict):
            return {key: drop(one) for key, one in value.items() if key != "timing"}
        return [drop(one) for one in value] if isinstance(value, list) else value

    match name.rpartition(".")[2]:
        case "jsonl":
            return [drop(json.loads(line)) for line in text.splitlines()]
        case "json":
            return drop(json.loads(text))
        case "csv":
            heads, *lines = csv.reader(io.StringIO(text))
            first = min(i for i, head in enumerate(heads) if head.startswith("timing."))
            assert all(head.startswith("timing.") for head in heads[first:])
            return [line[:first] for line in [heads, *lines]]
        case "html":
            return re.sub('<section id="timing">.*?</section>|<p id="run".*?</p>', "", text, flags=re.DOTALL)


def test_two_runs_leave_the_same_files_but_for_their_timing(tmp_path):
    made(clock=1.0).save(tmp_path / "fast")
    made(clock=7.0).save(tmp_path / "slow")
    assert sorted(path.name for path in (tmp_path / "fast").iterdir()) == FILES
    for name in FILES:
        fast, slow = ((tmp_path / run / name).read_text("utf-8") for run in ("fast", "slow"))
        assert fast != slow
        assert without_timing(name, fast) == without_timing(name, slow)


def test_a_report_that_cannot_be_written_leaves_the_old_one_as_it_was(tmp_path, monkeypatch):
    made().save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    calls = []

    def full(path, text):
        calls.append(path)
        if len(calls) == 3:
            raise OSError("no space left on device")
        path.write_text("half of it")

    monkeypatch.setattr("stretto.checkpoint._write", full)
    with pytest.raises(OSError, match="no space"):
        made(count=2).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_without_a_report_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path} has no summary.json")):
        Report.load(tmp_path)


def test_numbers_of_numpy_become_plain_ones(tmp_path):
    one = EpisodeRecord(
        "m", "a", np.int64(0), 0, np.int32(5), {"x": np.float32(0.5)}, {}, {"ore": np.int64(2)}, {"x": np.int64(1)}
    )
    report = Report.of([one], {"seed": np.int64(3), "folder": tmp_path})
    json.dumps(report.to_json())
    report.save(tmp_path)
    assert Report.load(tmp_path) == report


def test_a_table_of_episodes_has_a_column_for_everything_and_no_reward_for_what_failed():
    report = made()
    lines = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert [line["mission"] for line in lines] == [one.mission for one in report.records]
    for line, one in zip(lines, report.records, strict=True):
        assert line["statistics.ore<"] == str(one.statistics["ore<"])
        assert float(line["timing.seconds"]) == one.timing["seconds"]
        assert line["reward"] == ("" if one.failure else repr(one.reward))
        assert line["failure"].startswith("ValueError: ") == bool(one.failure)


def test_rows_fit_80_columns_and_missions_are_pooled_only_where_there_are_scores():
    plain, scored = made(), made(normalize=("random", LABELS[2]))
    for report in (plain, scored):
        rows = report.rows()
        widths = [max(map(len, column)) for column in zip(report.headings(), *rows, strict=True)]
        assert sum(widths) + 2 * (len(widths) - 1) <= 80
        assert rows[1][:2] == ("small", "random")
    assert "all" not in {row[0] for row in plain.rows()}
    assert "IQM [95%]" in plain.headings()
    assert "score [95%]" in scored.headings()
    assert [row[0] for row in scored.rows()[-3:]] == ["all"] * 3
    assert scored.rows()[-2][scored.headings().index("reward")] == "-"


def test_rows_have_all_that_is_known_of_a_policy_on_a_mission():
    def one(episode, **others):
        given = {"rewards": {"x": 1.0, "y": 2.0}, "policies": {}, "timing": {"seconds": 0.5}, **others}
        return EpisodeRecord("m", "a", episode, 0, 50, **given)

    well = Report.of([one(0), one(1)], {})
    assert well.headings() == ("mission", "policy", "n", "reward", "IQM [95%]", "steps", "steps/s")
    assert well.rows() == [("m", "a", "2", "1.50", "1.50 [1.50, 1.50]", "50.0", "100")]
    late = EpisodeFailure("PolicyOverdue", "late", "a", "x", 3, "", "")
    badly = Report.of([one(0, overdue={"x": 2}), one(1), one(2, overdue={"y": 1}, failure=late)], {})
    assert badly.headings()[-2:] == ("late", "failed")
    assert badly.rows()[0][-2:] == ("3", "1")


def test_rows_of_one_mission_are_not_repeated_for_all():
    one = Report.of([record("small", "random", i) for i in range(3)], {})
    assert [row[:3] for row in one.rows()] == [("small", "random", "3")]
    assert Report.of([], {}).rows() == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0.000"),
        (-0.1234, "-0.123"),
        (0.00012, "1.2e-4"),
        (9.876, "9.88"),
        (-54.32, "-54.3"),
        (12345.6, "12346"),
        (-99999.4, "-99999"),
        (123456, "1.2e5"),
        (-1.5e-12, "-1.5e-12"),
    ],
)
def test_short_numbers_keep_three_digits_or_so(value, text):
    assert short_number(value) == text


def test_names_that_are_too_long_lose_their_middle():
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghij", 6) == "abc…ij"
    assert [len(shorten("abcdefghij", most)) for most in range(1, 12)] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10]


def test_a_page_has_all_sections_and_a_text_for_every_plot():
    text = made().to_html()
    page = Page(text)
    assert page.values("id") == ["run", *SECTIONS]
    assert page.values("href") == ["#failures", *(f"#{name}" for name in SECTIONS)]
    plots = re.findall(r'<svg role="img"[^>]*>(<title>[^<]+</title>)?', text)
    assert len(plots) == 3 + 3 + 1 + 3
    assert all(plots)
    assert "prefers-color-scheme:dark" in text


def test_a_page_begins_with_the_answer_when_and_by_which_command_and_what_failed():
    text = made().to_html()
    head = text.partition("<nav>")[0]
    assert re.search("<h1>[^<]+</h1>", head)
    assert head.count("<li>") == 2
    assert "2031-01-01" in head
    assert "<code>stretto eval &lt;x&gt;</code>" in head
    failed = sum(one.failure is not None for one in made().records)
    assert f"{failed} of 108 episodes failed and do not count" in head


def test_a_page_begins_with_the_versions_that_played_it():
    installed = {"cpu": "some", "numpy": "2.4", "stretto": "0.1.0"}
    page = Report.of([record("small", "random", 0)], {"identity": {"installation": installed}}).to_html()
    Page(page)
    assert '<a href="#identity">stretto 0.1.0 · numpy 2.4</a>' in page.partition("<nav>")[0]
    assert 'id="identity"' in page


def test_a_page_has_no_section_and_no_plot_without_anything_in_it():
    alone = Report.of([EpisodeRecord("m", "a", i, i, 5, {"x": float(i)}, {}) for i in range(3)], {})
    assert Page(alone.to_html()).values("id") == ["results", "rewards"]
    lost = EpisodeFailure("WorkerDied", "", None, None, None, "", "")
    records = [
        EpisodeRecord("m", "a", 0, 0, 5, {"x": 1.0}, {}),
        EpisodeRecord("gone", "a", 0, 0, 5, {}, {}, failure=lost),
    ]
    text = Report.of(records, {}).to_html()
    assert Page(text).values("id") == ["failures", "results", "rewards"]
    assert re.findall("<figcaption>(.*?)</figcaption>", text) == ["m"]


def test_scores_are_in_the_page_with_all_missions_first():
    text = made(normalize=("random", LABELS[2])).to_html()
    Page(text)
    assert "A score is 0 at the mean reward of random on a mission" in text
    assert text.index("all missions") < text.index('<td class="left">small</td>')
    assert "IQM of the normalized score" in text
    assert "--normalize LOW:HIGH" in made().to_html()


def test_a_page_refers_to_nothing_outside_of_itself():
    text = made().to_html()
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "image", "use", "object", "base"} & set(page.tags)
    assert page.values("src") == page.values("srcset") == page.values("action") == []
    assert not re.search(r"https?:|//|url\(|@import", text.replace("-//", ""))
    assert "default-src 'none'" in text


def test_whatever_users_name_is_shown_as_text():
    text = made().to_html()
    Page(text)
    assert "<script" not in text
    assert "<b>no" not in text
    assert "<module>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text.replace("<wbr>", "")
    assert "large &lt;wide&gt;" in text
    assert "\x1b" not in text


def test_a_page_shows_failures_in_groups_with_a_traceback_and_how_to_play_one_again():
    report = made()
    text = report.to_html()
    failed = [one for one in report.records if one.failure]
    labels = {one.label for one in failed}
    assert len(failed) > len(labels) > 1
    assert text.count("<details>") == text.count("Traceback:\n") == text.count("Play it again") == len(labels)
    for label in labels:
        count = sum(one.label == label for one in failed)
        assert f"in {counted(count, 'episode')} of " in text


def test_a_page_of_very_many_episodes_stays_small():
    one = record("small", "random", 0)
    many = [dataclasses.replace(one, episode=i, rewards={"x": float(i)}) for i in range(5_000)]
    other = dataclasses.replace(one, label="b" * 60, rewards={})
    failures = [EpisodeFailure("ValueError", f"number {i}") for i in range(1_000)]
    many += [dataclasses.replace(other, episode=i, failure=failure) for i, failure in enumerate(failures)]
    text = Report.of(many, {}).to_html()
    assert text.count("<circle") <= 4 * MOST_POINTS
    assert text.count("<details>") == MOST_GROUPS
    assert len(text) < 500_000


@pytest.mark.parametrize(
    "rewards",
    [
        [],
        [1.0],
        [2.0, 2.0],
        [0.0, 0.0],
        [None],
        [None, 1.0],
        [float("nan")],
        [-1e308, 1e308],
        [-1e150, 1e150],
        [1e16, 1e16 + 2],
        [5e-324, 0.0],
        [-1e-200, 1e-200],
        [0.1 + 0.2, 0.3],
        [1234567.0, 1234890.0],
    ],
    ids=str,
)
def test_a_page_comes_out_of_whatever_a_game_rewards(rewards, tmp_path):
    broken = EpisodeFailure("WorkerDied", "", None, None, None, "", "")
    records = [
        EpisodeRecord(
            "m", label, i, 0, 1, {} if reward is None else {"x": reward}, {}, failure=broken if reward is None else None
        )
        for label in ("a", "b")
        for i, reward in enumerate(rewards)
    ]
    for failed in ("exclude", "worst"):
        report = Report.of(records, {}, failed=failed)
        page = Page(report.to_html())
        assert set(page.values("id")) <= set(SECTIONS)
        places = [value for name in ("x", "x1", "x2", "cx", "width") for value in page.values(name)]
        assert not any("nan" in place or "inf" in place for place in places)
        assert len(report.rows()) == (2 if rewards else 0)
        report.save(tmp_path)
        assert len(Report.load(tmp_path).records) == len(records)


def test_a_report_prints_as_its_table_and_shows_itself_in_a_line():
    report = stretto.evaluate("gym:CartPole-v1", ["random", "noop"], episodes=2, steps=5, jobs=0)
    lines = str(report).splitlines()
    assert len(lines) == 3
    assert lines[0].split()[:2] == ["mission", "policy"]
    assert all(len(line) <= 80 for line in lines)
    assert repr(report) == "<Report of 4 episodes, 1 mission, 2 policies; print it for a table>"


def test_the_policies_of_a_mix_stand_below_it_in_the_table_and_in_the_page(tmp_path):
    def episode(number):
        rewards, policies = {"x": 1.0, "y": 4.0}, {"x": "<one>", "y": "two"}
        return EpisodeRecord("m", "<one> + two", number, number, 5, rewards, policies, overdue={"x": 1})

    report = Report.of([episode(0), episode(1)], {})
    assert report.headings(100) == (
        *("mission", "policy", "n", "reward", "IQM [95%]", "rating [95%]", "steps", "steps/s", "late"),
    )
    assert [row[:5] + row[6:] for row in report.rows(100)] == [
        ("m", "<one> + two", "2", "2.50", "2.50 [2.50, 2.50]", "5.00", "-", "2"),
        ("m", "  <one>", "2", "1.00", "1.00 [1.00, 1.00]", "", "", ""),
        ("m", "  two", "2", "4.00", "4.00 [4.00, 4.00]", "", "", ""),
    ]
    ratings = [row[5] for row in report.rows(100)]
    assert ratings[0] == ""
    assert int(ratings[1].split()[0]) + int(ratings[2].split()[0]) == 3000
    assert Report.load(report.save(tmp_path)).summary == report.summary
    page = (tmp_path / "report.html").read_text()
    assert "Policies of a mix" in page
    assert '<td class="left">&lt;one&gt;</td>' in page
    assert "<h1>two is rated highest of 2 policies, but not clearly above &lt;one&gt;</h1>" in page
    assert "Who played with whom" in page
    assert "Policies of a mix" not in made().to_html()
    assert "Ratings" not in made().to_html()


def test_a_notebook_shows_the_answer_and_the_table():
    shown = made()._repr_html_()
    Page(shown)
    assert "<table>" in shown
    assert "<strong>" in shown
    assert "<style" not in shown
    assert "36 of" not in shown


def test_a_data_frame_has_the_rows_and_columns_of_the_csv():
    pandas = pytest.importorskip("pandas")
    broken = EpisodeFailure("ValueError", "no")
    records = [EpisodeRecord("m", "a", i, i, 5, {"x": 0.1 * i}, {"x": "a"}, {"ore": 2.0}) for i in range(3)]
    report = Report.of([*records, EpisodeRecord("m", "a", 3, 3, 1, {}, {}, failure=broken)], {})
    frame = report.to_dataframe()
    read = pandas.read_csv(io.StringIO(report.to_csv()))
    assert list(frame.columns) == list(read.columns)
    assert frame["reward"].notna().tolist() == [True, True, True, False]
    assert read["reward"].tolist() == pytest.approx(frame["reward"].tolist(), nan_ok=True)
    assert frame["failure"].tolist()[3] == "ValueError: no"


def test_without_pandas_a_data_frame_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install pandas"):
        made().to_dataframe()


def test_episodes_are_named_by_ranges_and_things_are_counted_in_words():
    assert numbers_text([3, 0, 1, 2, 7]) == "0-3, 7"
    assert numbers_text([5]) == "5"
    assert [counted(n, "policy") for n in (1, 1200)] == ["1 policy", "1,200 policies"]
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(list("abcdef")) == "a, b, c, d and 2 more"


def test_the_controls_of_a_player_do_not_cover_a_low_frame():
    (rule,) = re.findall(r"(?m)^\.film video\{(.*)\}$", made().to_html())
    assert {"min-height:160px", "object-position:top"} <= set(rule.split(";"))


def test_films_in_the_folder_are_in_the_page(tmp_path, monkeypatch):
    records = [EpisodeRecord("m/1", label, 0, 0, 5, {"x": 1.0}, {}) for label in ("a", "b")]
    for record, suffix in zip(records, (".mp4", ".gif"), strict=True):
        path = film_path(tmp_path, record.key, suffix)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"pictures of " + record.label.encode())
    Report.of(records, {}).save(tmp_path)
    page = (tmp_path / "report.html").read_text()
    read = Page(page)
    assert [base64.b64decode(source.partition(",")[2]) for source in read.values("src")] == [
        b"pictures of a",
        b"pictures of b",
    ]
    assert {"video", "img"} <= set(read.tags)
    assert "m/1 · a · episode 0" in page
    assert "img-src data:; media-src data:" in page
    monkeypatch.setattr("stretto.evaluation.report.film_section.MOST_FILM_BYTES", 20)
    Report.of(records, {}).save(tmp_path)
    read = Page((tmp_path / "report.html").read_text())
    assert len(read.values("src")) == 1
    assert [tmp_path / link for link in read.values("href") if not link.startswith("#")] == [
        film_path(tmp_path, records[1].key, ".gif")
    ]
