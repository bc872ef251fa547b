"""What one reads while an evaluation runs."""

from __future__ import annotations

from rich.console import Console

from stretto.cli.eval_progress import ProgressLines, moving_table, shown_progress
from stretto.evaluation.progress import Progress, RunningTask
from stretto.evaluation.records import EpisodeRecord


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def record(label: str, episode: int, reward: float = 0.5, mission: str = "m") -> EpisodeRecord:
    timing = {"seconds": 0.5}
    return EpisodeRecord(mission, label, episode, episode, 10, {"a": reward}, {"a": label}, timing=timing)


def begun(clock, *pairs, total=1000):
    progress = Progress(clock)
    progress.begin(dict.fromkeys(pairs, total), {mission: None for mission, _ in pairs})
    return progress


def seen(progress, width=100):
    console = Console(width=width)
    with console.capture() as captured:
        console.print(moving_table(progress))
    return captured.get()


def test_where_there_is_no_terminal_lines_come_now_and_then_and_less_and_less_often(capsys):
    clock = Clock()
    progress = begun(clock, ("m", "p"))
    lines = ProgressLines(progress)
    with progress.playing(lambda: ()):
        for i in range(100):
            clock.now += 0.5
            progress.add(record("p", i))
            lines.look()
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "10 of 1,000 episodes, 100 steps (20 a second) after 5 s, about 8 min left; rewards so far: p 0.500",
        "30 of 1,000 episodes, 300 steps (20 a second) after 15 s, about 8 min left; rewards so far: p 0.500",
        "70 of 1,000 episodes, 700 steps (20 a second) after 35 s, about 8 min left; rewards so far: p 0.500",
    ]


def test_an_episode_that_never_ends_is_named_once_with_the_remedy(capsys):
    clock = Clock()
    progress = begun(clock, ("m", "p"))
    lines = ProgressLines(progress)
    with progress.playing(lambda: [RunningTask("m", "p", (7,), 1_000_000, clock.now - 100)]):
        clock.now += 4
        lines.look()
        assert capsys.readouterr().err == ""
        clock.now += 40
        lines.look()
        told = capsys.readouterr().err
        assert "episode 7 of m with p is at step 1,000,000 and may never end; --steps NUMBER ends episodes" in told
        assert "--steps" in seen(progress, 200)
        lines.look()
        assert "may never end" not in capsys.readouterr().err


def test_in_a_terminal_there_is_a_row_for_each_mission_and_policy_with_what_it_got_so_far():
    clock = Clock()
    progress = begun(clock, ("m", "p"), ("m", "q"), total=4)
    assert "getting ready" in seen(progress)
    with progress.playing(lambda: [RunningTask("m", "q", (0,), 30, 1.0)]):
        progress.add(record("p", 0, 2.0))
        clock.now += 2
        first, second, last = seen(progress).splitlines()
    assert first.split()[:2] == ["m", "p"]
    assert first.split()[-3:] == ["1/4", "reward", "2.00"]
    assert second.split()[-1] == "0/4"
    assert last.startswith("1 of 8 episodes, 40 steps (20 a second) after 2 s, more than ")


def test_of_very_many_missions_those_are_shown_that_are_played_now():
    progress = begun(Clock(), *((f"m{i}", "p") for i in range(40)), total=2)
    with progress.playing(lambda: [RunningTask("m17", "p", (0, 1), 3, 1.0)]):
        rows = seen(progress).splitlines()
    assert len(rows) == 2
    assert rows[0].split()[:2] == ["m17", "p"]
    assert "0 of 80 episodes, 6 steps" in rows[1]


def test_quiet_says_nothing(capsys):
    with shown_progress(quiet=True) as progress:
        progress.begin({("m", "p"): 3}, {"m": None})
        progress.add(record("p", 0))
    assert capsys.readouterr().err == ""
