"""What episodes say: by hand where that is possible, by simulation where it is not."""

from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pytest
from scipy import stats

from stretto.errors import UsageError
from stretto.evaluation.records import EpisodeFailure, EpisodeRecord
from stretto.evaluation.statistics.averages import interquartile_mean
from stretto.evaluation.statistics.bootstrap import RESAMPLES, Bootstrap
from stretto.evaluation.statistics.scales import references_of
from stretto.evaluation.statistics.score_interval import score_interval
from stretto.evaluation.statistics.summarize import counted_rewards, summarize
from stretto.evaluation.statistics.summary import Summary
from stretto.seeding import SeedTree

BROKEN = EpisodeFailure("ValueError", "no", "a", "agent_0", 3, "Traceback", "stretto evaluate")


def played(label, episode, reward, mission="m", **others):
    """An episode in which each of two agents got `reward`; None stands for one that failed."""
    agents = ("x", "y")
    return EpisodeRecord(
        mission=mission,
        label=label,
        episode=episode,
        seed=episode,
        steps=others.pop("steps", 10),
        rewards={} if reward is None else dict.fromkeys(agents, reward),
        policies=dict.fromkeys(agents, label),
        failure=BROKEN if reward is None else None,
        **others,
    )


def episodes(mission="m", **rewards):
    return [played(label, i, reward, mission) for label, found in rewards.items() for i, reward in enumerate(found)]


def iqm_interval(strata, stream, resamples=RESAMPLES):
    bootstrap = Bootstrap(stream, resamples)
    bootstrap.add_iqm("it", {f"m{i}": stratum for i, stratum in enumerate(strata)})
    return bootstrap.intervals().get("it")


def mean_interval(strata, stream, resamples=RESAMPLES):
    bootstrap = Bootstrap(stream, resamples)
    bootstrap.add_mean("it", {f"m{i}": stratum for i, stratum in enumerate(strata)})
    return bootstrap.intervals().get("it")


def only(rows):
    [row] = rows
    return row


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([7], 7),
        ([1, 2, 6], 3),  # a quarter of three is none
        ([100, 2, 4, -50], 3),
        ([9, 1, 2, 3, 4, 5, 6, 1000], 4.5),  # the middle four: 3, 4, 5, 6
        ([0, 0, 1, 2, 30], 1),  # a quarter of five is one
    ],
)
def test_the_interquartile_mean_is_the_mean_of_the_middle_half(values, expected):
    assert interquartile_mean(values) == expected


def test_the_interquartile_mean_agrees_with_a_mean_trimmed_by_a_quarter():
    rng = np.random.default_rng(0)
    for count in range(1, 40):
        values = rng.standard_cauchy(count)
        assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_a_resample_has_the_interquartile_mean_that_sorting_it_would_give():
    rng = np.random.default_rng(1)
    strata = [rng.normal(size=7).tolist(), rng.normal(5, 2, size=6).tolist()]
    stream = SeedTree(3)

    def drawn(i, first):
        stratum = np.array(strata[i])
        return stratum[stream.child(f"m{i}", first).generator().integers(len(stratum), size=(len(stratum), 500))]

    resampled = np.hstack([np.vstack([drawn(0, first), drawn(1, first)]) for first in range(0, RESAMPLES, 500)])
    assert resampled.shape == (13, RESAMPLES)
    iqms = stats.trim_mean(resampled, 0.25, axis=0)
    assert iqm_interval(strata, stream) == pytest.approx(np.quantile(iqms, [0.025, 0.975]))
    assert mean_interval(strata, stream) == pytest.approx(np.quantile(resampled.mean(axis=0), [0.025, 0.975]))


def test_an_interval_is_the_same_whatever_else_is_asked_for():
    rng = np.random.default_rng(6)
    sets = [{"one": rng.normal(size=9).tolist(), "two": rng.normal(size=5).tolist()} for _ in range(4)]
    together = Bootstrap(SeedTree(1))
    for i, strata in enumerate(sets):
        together.add_iqm(("iqm", i), strata)
        together.add_mean(("mean", i), strata)
        together.add_mean(("part", i), {"one": strata["one"]})
    found = together.intervals()
    assert len(found) == 12
    for i, strata in enumerate(sets):
        alone = Bootstrap(SeedTree(1))
        alone.add_mean("mean", strata)
        alone.add_mean("part", {"one": strata["one"]})
        assert alone.intervals() == {"mean": found["mean", i], "part": found["part", i]}
        alone = Bootstrap(SeedTree(1))
        alone.add_iqm("iqm", strata)
        assert alone.intervals() == {"iqm": found["iqm", i]}


def test_all_resamples_of_two_numbers_are_drawn_as_often_as_they_should_be():
    # Of 0 and 1, a quarter of the resamples has twice 0, half has both, a quarter twice 1: an interval of 95% has all.
    assert mean_interval([[0.0, 1.0]], SeedTree(0)) == (0.0, 1.0)
    # Of 0, 0, 0, 1 the mean is 0 with probability 0.316, 0.25 with 0.422, 0.5 with 0.211, 0.75 with 0.047, 1 with 0.004.
    assert mean_interval([[0.0, 0.0, 0.0, 1.0]], SeedTree(0), 20_000) == (0.0, 0.75)
    # Where two strata have one number each beside them, nothing changes but the share.
    assert mean_interval([[0.0, 1.0], [1.0], [0.0]], SeedTree(0)) == (0.25, 0.75)


def test_the_interval_of_the_probability_of_improvement_covers_the_truth_with_ties():
    rng = np.random.default_rng(8)
    trials, covered = 200, 0
    for trial in range(trials):
        # Better in half of the episodes, equal in 0.3, worse in 0.2: the truth is 0.5 + 0.3 / 2.
        gains = rng.choice([1.0, 0.0, -1.0], p=[0.5, 0.3, 0.2], size=60)
        records = episodes(a=gains.tolist(), b=[0.0] * 60)
        row = summarize(records, seed=trial, resamples=300).comparisons[0]
        low, high = row.improvement_interval
        assert low <= row.improvement == (np.sum(gains > 0) + np.sum(gains == 0) / 2) / 60 <= high
        covered += low <= 0.65 <= high
    assert 0.90 <= covered / trials <= 0.985


@pytest.mark.parametrize("interval", [iqm_interval, mean_interval])
def test_an_interval_covers_the_truth_about_95_times_in_a_hundred(interval):
    rng = np.random.default_rng(2)
    trials = 300
    # Two missions of different level and spread: the truth of both together is the middle, by symmetry.
    found = [
        interval([rng.normal(-3, 1, 40).tolist(), rng.normal(3, 1, 40).tolist()], SeedTree(trial), 500)
        for trial in range(trials)
    ]
    assert 0.91 <= sum(low <= 0 <= high for low, high in found) / trials <= 0.98


def test_strata_keep_the_difference_between_missions_out_of_the_interval():
    rng = np.random.default_rng(3)
    low, high = rng.normal(0, 1, 50).tolist(), rng.normal(100, 1, 50).tolist()
    apart = mean_interval([low, high], SeedTree(0))
    together = mean_interval([low + high], SeedTree(0))
    assert together[1] - together[0] > 20 * (apart[1] - apart[0])


@pytest.mark.parametrize("interval", [iqm_interval, mean_interval])
def test_episodes_that_agree_have_exactly_themselves_for_an_interval(interval):
    assert interval([[0.1] * 7, [0.1] * 3], SeedTree(0)) == (0.1, 0.1)


@pytest.mark.parametrize("strata", [[], [[]], [[1.0]], [[1.0], [2.0]]], ids=str)
def test_there_is_no_interval_where_there_is_nothing_to_draw_from(strata):
    assert iqm_interval(strata, SeedTree(0)) is None
    assert mean_interval(strata, SeedTree(0)) is None


def test_a_label_has_its_means_over_agents_and_episodes():
    records = [
        EpisodeRecord("m", "a", 0, 0, 10, {"x": 1.0, "y": 3.0}, {}, {"ore": 4.0, "late": 1.0}, {"x": 2}),
        EpisodeRecord(
            "m", "a", 1, 1, 20, {"x": 5.0, "y": 7.0}, {}, {"ore": 1.0, "late": float("nan")}, {"x": 1, "y": 1}
        ),
        EpisodeRecord("m", "a", 2, 2, 30, {"x": 4.0}, {}, {"ore": 1.0}),
    ]
    row = only(summarize(records).by_mission)
    assert (row.mission, row.label, row.episodes, row.failures, row.left_out) == ("m", "a", 3, 0, 0)
    assert (row.reward, row.iqm, row.steps, row.overdue) == (4.0, 4.0, 20.0, 4)
    assert row.statistics == {"ore": {"mean": 2.0, "episodes": 3}, "late": {"mean": 1.0, "episodes": 1}}
    assert row.interval[0] <= 4.0 <= row.interval[1]


def test_only_timing_depends_on_the_clock():
    slow = [played("a", i, 1.0, steps=10, timing={"seconds": 2.0}) for i in range(3)]
    fast = [played("a", i, 1.0, steps=10, timing={"seconds": 0.5}) for i in range(3)]
    untimed = [played("a", i, 1.0, steps=10) for i in range(3)]
    rows = [only(summarize(records).by_mission) for records in (slow, fast, untimed)]
    assert [row.timing.get("steps_per_second") for row in rows] == [5.0, 20.0, None]
    assert len({str(dataclasses.replace(row, timing={})) for row in rows}) == 1


def test_rewards_of_several_missions_are_not_pooled():
    records = episodes("one", a=[1, 2, 3, 4]) + episodes("two", a=[100, 200])
    row = only(summarize(records).overall)
    assert (row.mission, row.episodes, row.steps) == (None, 6, 10)
    assert (row.reward, row.iqm, row.interval, row.score, row.statistics) == (None, None, None, None, {})
    alone = only(summarize(episodes("one", a=[1, 2, 3, 4])).overall)
    assert (alone.reward, alone.iqm) == (2.5, 2.5)


def test_scores_are_0_at_the_mean_of_the_lower_reference_and_1_at_that_of_the_higher_one():
    records = episodes("one", low=[0, 2], high=[5, 5], mine=[3, 7]) + episodes("two", low=[-50], high=[50], mine=[0])
    summary = summarize(records, normalize=("low", "high"), labels=["mine", "low", "high"])
    assert summary.scales == {"one": (1.0, 5.0), "two": (-50.0, 50.0)}
    scores = {(row.mission, row.label): row.score for row in (*summary.by_mission, *summary.overall)}
    assert {label: scores["one", label] for label in ("low", "high", "mine")} == {"low": 0.0, "high": 1.0, "mine": 1.0}
    assert scores["two", "mine"] == 0.5
    assert scores[None, "mine"] == pytest.approx((0.5 + 1.5 + 0.5) / 3)
    assert {row.reward for row in summary.overall} == {None}
    first, second = (row for row in summary.comparisons if row.mission is None and row.label == "mine")
    assert (first.baseline, first.difference) == ("low", pytest.approx((0.75 + 1.25 + 0.5) / 3))
    assert second.difference_interval[0] <= second.difference <= second.difference_interval[1]
    assert Summary.from_json(json.loads(json.dumps(summary.as_json()))) == summary


def test_a_mission_on_which_the_references_are_equal_has_no_scale_and_is_named():
    flat = episodes("flat", low=[1, 1], high=[1, 1], mine=[9, 9])
    reverse = episodes("reverse", low=[2], high=[1], mine=[9])
    records = episodes("one", low=[0], high=[10], mine=[5]) + flat + reverse + episodes("lost", low=[None], mine=[3])
    summary = summarize(records, normalize=("low", "high"))
    assert summary.unscaled == ("flat", "lost", "reverse")
    assert {row.label: row.score for row in summary.overall} == {"low": 0.0, "high": 1.0, "mine": 0.5}
    assert {row.score for row in summary.by_mission if row.mission in summary.unscaled} == {None}


@pytest.mark.parametrize(
    ("text", "references"),
    [
        ("random:planner", ("random", "planner")),
        ("a.py:P:random", ("a.py:P", "random")),
        ("random:a.py:P", ("random", "a.py:P")),
    ],
)
def test_references_are_two_policies_of_the_evaluation(text, references):
    assert references_of(text, ["random", "planner", "a.py:P"]) == references


@pytest.mark.parametrize("text", ["random", "random:random", "random:nobody", ":", ""])
def test_what_names_no_two_policies_is_refused_with_those_that_there_are(text):
    with pytest.raises(UsageError, match=r"LOW:HIGH.*the policies are random, planner"):
        references_of(text, ["random", "planner"])


def test_the_probability_of_improvement_counts_pairs_and_halves_ties():
    records = episodes(a=[3, 5, 2, 1], b=[1, 5, 4, 0])
    row = summarize(records).comparisons[0]
    assert (row.mission, row.label, row.baseline, row.episodes) == (None, "a", "b", 4)
    assert row.improvement == (1 + 0.5 + 0 + 1) / 4
    assert row.difference == (2 + 0 - 2 + 1) / 4
    assert 0 <= row.improvement_interval[0] < row.improvement < row.improvement_interval[1] <= 1
    assert row.difference_interval[0] < row.difference < row.difference_interval[1]


def test_episodes_are_paired_by_mission_and_number_and_the_rest_is_not_compared():
    records = [played("a", 0, 1.0), played("a", 1, 2.0), played("b", 1, 9.0), played("b", 2, 0.0)]
    records += [played("a", 2, 5.0, "other"), played("b", 2, 4.0, "other")]
    pooled, there, elsewhere = summarize(records, missions=["m", "other"]).comparisons
    assert (pooled.episodes, pooled.improvement, pooled.difference) == (2, 0.5, None)
    assert (there.episodes, there.improvement, there.difference) == (1, 0.0, -7.0)
    assert (elsewhere.episodes, elsewhere.improvement, elsewhere.difference) == (1, 1.0, 1.0)
    assert 0 < pooled.improvement_interval[0] < 0.5 < pooled.improvement_interval[1] < 1


@pytest.mark.parametrize(("wins", "count"), [(1, 1), (0, 1), (12, 12), (0, 5), (7, 20)])
def test_without_ties_the_interval_of_a_share_is_that_of_wilson(wins, count):
    expected = stats.binomtest(wins, count).proportion_ci(method="wilson")
    assert score_interval(wins, 0, count - wins) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("counts", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (10, 0, 0), (0, 10, 0), (0, 0, 10)], ids=str)
def test_the_interval_of_a_share_is_never_a_point(counts):
    low, high = score_interval(*counts)
    assert 0 <= low < high <= 1
    assert high - low > 0.2
    assert score_interval(*reversed(counts)) == pytest.approx((1 - high, 1 - low))


def test_policies_that_share_one_episode_are_compared_in_it():
    row = summarize(episodes(a=[1.0], b=[0.0])).comparisons[0]
    assert (row.episodes, row.improvement, row.difference) == (1, 1.0, 1.0)
    assert row.improvement_interval == pytest.approx((0.2065, 1.0), abs=1e-4)
    assert row.swapped().improvement_interval == pytest.approx((0.0, 0.7935), abs=1e-4)


def test_every_pair_of_labels_is_compared_in_the_order_given():
    summary = summarize(episodes(a=[1, 2], b=[1, 2], c=[1, 2]), labels=["c", "a", "b"])
    pooled = [(row.label, row.baseline) for row in summary.comparisons if row.mission is None]
    assert pooled == [("c", "a"), ("c", "b"), ("a", "b")]


def test_a_failed_episode_is_left_out_for_all_labels():
    records = episodes(a=[1, None, 3], b=[10, 20, 30], c=[5, 6, 7])
    summary = summarize(records, failed="exclude")
    assert [(row.label, row.episodes, row.failures, row.left_out) for row in summary.by_mission] == [
        ("a", 2, 1, 1),
        ("b", 2, 0, 1),
        ("c", 2, 0, 1),
    ]
    assert [row.reward for row in summary.by_mission] == [2.0, 20.0, 6.0]
    assert {row.episodes for row in summary.comparisons} == {2}


def test_a_failed_episode_takes_nothing_away_on_other_missions():
    records = episodes("one", a=[1, None], b=[1, 2]) + episodes("two", a=[1, 2], b=[1, 2])
    assert [row.episodes for row in summarize(records).by_mission] == [1, 1, 2, 2]


def test_a_label_that_always_failed_takes_nothing_away_from_the_others():
    summary = summarize(episodes(a=[1, 2], b=[3, 5], broken=[None, None]))
    assert [row.reward for row in summary.by_mission] == [1.5, 4.0, None]
    assert [row.episodes for row in summary.comparisons if row.mission is None] == [2, 0, 0]
    assert summary.comparisons[1].improvement is None


def test_a_label_that_always_failed_on_a_mission_takes_nothing_away_there():
    records = episodes("one", a=[1, 2], b=[None, None]) + episodes("two", a=[1, 2], b=[3, None])
    found = {(row.mission, row.label): row.episodes for row in summarize(records).by_mission}
    assert found == {("one", "a"): 2, ("one", "b"): 0, ("two", "a"): 1, ("two", "b"): 1}


def test_a_failed_episode_counts_as_the_worst_that_anybody_got_on_its_mission():
    records = episodes(a=[1, None, 3], b=[10, 20, -4]) + episodes("far", a=[-100], b=[0])
    summary = summarize(records, failed="worst", missions=["m", "far"])
    a, b = summary.by_mission[:2]
    assert (a.episodes, a.failures, a.left_out, a.reward) == (3, 1, 0, (1 - 4 + 3) / 3)
    assert (b.episodes, b.failures, b.reward) == (3, 0, 26 / 3)
    compared = summary.comparisons[1]
    assert (compared.mission, compared.episodes, compared.improvement) == ("m", 3, 1 / 3)


def test_steps_and_statistics_are_those_of_episodes_with_a_result_even_where_failures_count():
    records = [
        played("a", 0, 1.0, steps=8, statistics={"ore": 2.0}),
        played("a", 1, None, steps=1, statistics={"ore": 9.0}),
    ]
    row = only(summarize(records, failed="worst").by_mission)
    assert (row.episodes, row.steps, row.statistics["ore"]) == (2, 8.0, {"mean": 2.0, "episodes": 1})


def test_where_nobody_has_a_result_there_is_no_worst_one():
    row = only(summarize(episodes(a=[None, None]), failed="worst").by_mission)
    assert (row.episodes, row.failures, row.left_out, row.reward) == (0, 2, 2, None)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_a_failure(reward):
    records = episodes(a=[1.0, reward], b=[2.0, 3.0])
    assert counted_rewards(records) == {("m", "a", 0): 1.0, ("m", "b", 0): 2.0}
    assert counted_rewards(records, "worst")["m", "a", 1] == 1.0
    assert summarize(records).by_mission[0].failures == 1


@pytest.mark.parametrize("failed", ["exclude", "worst"])
def test_the_order_of_the_records_does_not_matter(failed):
    rng = np.random.default_rng(5)
    records = [
        played(
            label,
            i,
            None if rng.random() < 0.1 else float(rng.normal()),
            mission,
            statistics={"ore": float(rng.normal())},
        )
        for label in "abc"
        for mission in ("one", "two")
        for i in range(15)
    ]
    expected = json.dumps(summarize(records, failed=failed).as_json())
    for seed in range(3):
        random.Random(seed).shuffle(records)
        assert json.dumps(summarize(records, failed=failed).as_json()) == expected


def test_the_seed_decides_what_is_drawn():
    records = episodes(a=list(range(20)))
    first, again, other = (only(summarize(records, seed=seed).overall).interval for seed in (1, 1, 2))
    assert first == again != other


def test_no_records_give_an_empty_summary():
    summary = summarize([])
    assert (summary.missions, summary.labels, summary.by_mission, summary.overall, summary.comparisons) == ((),) * 5


def test_a_single_episode_has_means_but_no_interval():
    row = only(summarize([played("a", 0, 2.5)]).overall)
    assert (row.episodes, row.reward, row.iqm, row.interval) == (1, 2.5, 2.5, None)


def test_a_summary_survives_json():
    summary = summarize(episodes(a=[1, None, 3, 4], b=[2, 2, 2, 5]))
    assert Summary.from_json(json.loads(json.dumps(summary.as_json()))) == summary


def test_an_episode_with_two_records_is_refused():
    with pytest.raises(UsageError, match="one record, got 2"):
        summarize([played("a", 0, 1.0), played("a", 0, 1.0)])


def test_an_order_that_leaves_somebody_out_is_refused():
    with pytest.raises(UsageError, match=r"add \['b'\]"):
        summarize(episodes(a=[1], b=[1]), labels=["a"])


def test_an_unknown_rule_for_failures_is_refused():
    with pytest.raises(UsageError, match="exclude, worst, got 'zero'"):
        summarize([], failed="zero")


def mixed(episode, mission="m", **rewards):
    """An episode of a mix in which each agent got a reward and is named by its policy: `a1`, `a2` and `b1`."""
    record = played("a + b", episode, 0.0, mission)
    return dataclasses.replace(record, rewards=rewards, policies={agent: agent[0] for agent in rewards})


def test_each_policy_of_a_mix_has_the_mean_of_its_own_agents_over_the_episodes_in_which_any_followed_it():
    records = [
        mixed(0, a1=1.0, a2=3.0, b1=10.0),
        mixed(1, a1=4.0, b1=20.0, b2=40.0),
        mixed(2, a1=9.0),
        mixed(0, "n", b1=6.0),
        played("a + b", 3, None),
        played("c", 0, 100.0),
    ]
    # What failed for the mix is left out for it alone: no other label played it.
    summary = summarize(records)
    found = {(row.mission, row.policy): (row.episodes, row.reward, row.iqm) for row in summary.by_policy}
    assert found == {
        ("m", "a"): (3, 5.0, 5.0),
        ("m", "b"): (2, 20.0, 20.0),
        ("n", "b"): (1, 6.0, 6.0),
        (None, "a"): (3, None, None),
        (None, "b"): (3, None, None),
    }
    assert {row.label for row in summary.by_policy} == {"a + b"}
    intervals = {(row.mission, row.policy): row.interval for row in summary.by_policy}
    assert intervals["m", "b"] == (10.0, 30.0)
    assert intervals["n", "b"] is None
    again = Summary.from_json(json.loads(json.dumps(summary.as_json())))
    assert again == summary


def test_policies_that_are_compared_have_no_rows_of_a_mix_and_neither_have_summaries_of_before():
    summary = summarize(episodes(a=[1, 2], b=[3, 4]))
    assert summary.by_policy == ()
    added = ("by_policy", "within_mixes", "normalize", "scales")
    before = {name: value for name, value in summary.as_json().items() if name not in added}
    assert Summary.from_json(before) == summary


def test_policies_that_played_together_are_rated_by_who_got_more_in_the_same_episode():
    records = [mixed(i, a1=2.0, a2=4.0, b1=1.0, c1=5.0 if i % 2 else 0.0) for i in range(20)]
    summary = summarize(records + [mixed(i, "far", b1=1000.0, c1=2000.0) for i in range(3)])
    ratings = {row.policy: row for row in summary.by_policy if row.mission == "m"}
    assert ratings["a"].rating > ratings["c"].rating > ratings["b"].rating
    assert sum(row.rating for row in ratings.values()) / 3 == pytest.approx(1500)
    for row in ratings.values():
        assert row.rating_interval[0] < row.rating < row.rating_interval[1] < row.rating + 400
    assert {row.policy for row in summary.by_policy if row.mission is None and row.rating} == {"a", "b", "c"}
    pairs = {(row.mission, row.label, row.baseline): row for row in summary.within_mixes}
    assert {row.mix for row in pairs.values()} == {"a + b"}
    assert (pairs["m", "a", "b"].episodes, pairs["m", "a", "b"].improvement, pairs["m", "a", "b"].difference) == (
        20,
        1,
        2,
    )
    assert pairs["m", "a", "c"].improvement == 0.5
    assert ("far", "a", "b") not in pairs
    assert (pairs[None, "b", "c"].episodes, pairs[None, "b", "c"].difference) == (23, None)
    assert Summary.from_json(json.loads(json.dumps(summary.as_json()))) == summary


def test_a_policy_that_met_nobody_has_no_rating():
    summary = summarize([mixed(0, a1=1.0), mixed(1, b1=1.0)])
    assert [row.rating for row in summary.by_policy] == [None] * 4
    assert summary.within_mixes == ()
