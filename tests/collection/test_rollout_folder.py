"""The folder that a collection is kept in: what has ended is never lost or played again, and nothing else is taken for it."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.collection import files, rollout_folder
from stretto.collection.files import complete_parts
from stretto.collection.opened import CollectionInterrupted
from stretto.collection.stored import StoredPart
from stretto.errors import DamagedCheckpoint, ResourceError, UsageError
from tests.worlds import Drift, Echo, TaskWorld, makes

SMALL = {"backend": "serial", "check_reuse": False}


@pytest.fixture(autouse=True)
def many_parts(monkeypatch):
    """Let parts be small, so that there are many."""
    monkeypatch.setattr(files, "PART_ROWS", 20)


def kept(folder, count=12, world=Drift, policy="random", **options):
    return stretto.collect(world, policy, count, out=folder, **{**SMALL, **options})


def plain(count=12, world=Drift, policy="random", **options):
    return stretto.collect(world, policy, count, **{**SMALL, **options})


def interrupted(folder, after=5, **options):
    """Collect, and interrupt it when so many rollouts have ended."""
    heard = []

    def hear(rollout):
        heard.append(rollout)
        if len(heard) == after:
            raise KeyboardInterrupt

    with pytest.raises(CollectionInterrupted) as raised:
        kept(folder, on_rollout=hear, **options)
    return raised.value.rollouts


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("wait", ["whole", "lockstep", "ready-first"])
def test_what_is_kept_is_what_is_returned_and_what_is_collected_in_memory(tmp_path, wait):
    found = kept(tmp_path / "data", wait=wait)
    assert found.digest() == plain().digest() == stretto.load_rollouts(tmp_path / "data").digest()
    assert len(complete_parts(tmp_path / "data")) > 2
    assert found[3].digest() == plain()[3].digest()
    assert [one.index for one in found[2:5]] == [2, 3, 4]


def test_a_rollout_is_read_when_it_is_looked_at_and_few_parts_are_open_at_a_time(tmp_path, monkeypatch):
    wanted, read, opened = plain(40), [], []
    load, look = StoredPart.__init__, StoredPart.rollout
    kept(tmp_path / "data", 40)
    for found in (stretto.load_rollouts(tmp_path / "data"), kept(tmp_path / "data", 40, resume=True)):
        with monkeypatch.context() as patch:
            patch.setattr(
                StoredPart, "__init__", lambda self, part, **how: opened.append(part) or load(self, part, **how)
            )
            patch.setattr(StoredPart, "rollout", lambda self, number: read.append(number) or look(self, number))
            assert found.lengths.tolist() == wanted.lengths.tolist()
            some = found[5:9]
            assert repr(some) == repr(wanted[5:9])
            assert (read, opened) == ([], [])
            assert some[1].digest() == wanted[6].digest()
            assert len(read) == len(opened) == 1
            assert found.digest() == wanted.digest()
            assert sorted(set(opened)) == complete_parts(tmp_path / "data")
            assert len(found._rollouts._open) == 4
            read.clear()
            opened.clear()


def test_one_that_is_interrupted_keeps_what_has_ended_and_goes_on_with_the_rest(tmp_path):
    some = interrupted(tmp_path / "data")
    assert [one.index for one in some] == [0, 1, 2, 3, 4]
    assert stretto.load_rollouts(tmp_path / "data").digest() == some.digest() == plain(5).digest()
    heard = []
    found = kept(tmp_path / "data", resume=True, on_rollout=heard.append)
    assert found.digest() == plain().digest()
    assert [one.index for one in heard] == list(range(12))


def test_one_in_memory_that_is_interrupted_gives_what_has_ended():
    def stop(rollout):
        if rollout.index == 3:
            raise KeyboardInterrupt

    with pytest.raises(CollectionInterrupted) as raised:
        plain(on_rollout=stop)
    assert raised.value.rollouts.digest() == plain(4).digest()


def test_a_finished_one_is_read_and_not_played_again_and_can_have_more_rollouts(tmp_path):
    kept(tmp_path / "data")
    files_before = contents(tmp_path / "data")
    began = []
    assert kept(tmp_path / "data", resume=True, on_begin=lambda: began.append(1)).digest() == plain().digest()
    assert contents(tmp_path / "data") == files_before
    assert not began
    more = kept(tmp_path / "data", 20, resume=True, wait="lockstep", num_envs=3, on_begin=lambda: began.append(1))
    assert more.digest() == plain(20).digest()
    assert began == [1]


def harder(seen, stream):
    return float(sum(sum(one.returns.values()) for one in seen)) + stream.random()


def test_a_curriculum_that_goes_on_is_given_the_rollouts_before(tmp_path):
    options = {"world": makes(TaskWorld, 3), "tasks": stretto.Curriculum(harder, every=3)}
    interrupted(tmp_path / "data", **options)
    assert kept(tmp_path / "data", resume=True, **options).digest() == plain(**options).digest()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 1}, "seed was 0 in .* and is 1 now; ask for the same"),
        ({"count": 11}, "rollouts was 12 in .* and is 11 now; ask for as many or more"),
        ({"world": TaskWorld}, "world was 'worlds:Drift' in .* and is 'worlds:TaskWorld' now"),
        ({"policy": "noop"}, "policy was 'random' in .* and is 'noop' now"),
        ({"tasks": [1, 2]}, "tasks was '3 tasks .*' in .* and is '2 tasks .*' now"),
        ({"episodes_per_task": 2}, "episodes_per_task was 1 in"),
        ({"max_steps": 3}, "max_steps was 30 in"),
        ({"act_rows": 16}, "act_rows was 32 in"),
        ({"turns": "sequential"}, "turns was 'simultaneous' in"),
        ({"rewards": True}, "rewards was False in"),
        ({"fresh_worlds": True}, "fresh_worlds was False in"),
        ({"native_threads": 2}, "native_threads was None in .* and is 2 now"),
        ({"env_kwargs": {"length": 3}}, r"world_settings\.length was None in .* and is 3 now"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_another_collection_is_not_gone_on_with_and_what_differs_is_named(tmp_path, changed, named):
    asked = {"tasks": [1, 2, 3], "max_steps": 30, "wait": "lockstep"}
    kept(tmp_path / "data", **asked)
    before = contents(tmp_path / "data")
    with pytest.raises(UsageError, match=f"only the same collection can be gone on with, and {named}"):
        kept(tmp_path / "data", resume=True, **{**asked, **changed})
    assert contents(tmp_path / "data") == before


def test_where_and_how_it_is_done_may_differ(tmp_path):
    interrupted(tmp_path / "data", wait="whole")
    options = {"backend": "process", "workers": 2, "num_envs": 4, "wait": "lockstep", "step_timeout": 30.0}
    assert kept(tmp_path / "data", resume=True, **options).digest() == plain().digest()


def test_a_folder_that_holds_something_is_not_overwritten_and_an_empty_one_is_not_gone_on_with(tmp_path):
    kept(tmp_path / "data")
    with pytest.raises(UsageError, match="holds a collection that was begun; choose another folder, or go on"):
        kept(tmp_path / "data")
    with pytest.raises(UsageError, match="holds a collection, whose rollouts are there already"):
        plain().save(tmp_path / "data")
    plain().save(tmp_path / "saved")
    with pytest.raises(UsageError, match="holds a collection that was begun"):
        kept(tmp_path / "saved")
    with pytest.raises(UsageError, match=r"a collection is resumed from its folder, and .*nothing does not exist"):
        kept(tmp_path / "nothing", resume=True)
    assert not (tmp_path / "nothing").exists()
    stretto.evaluate(Drift, "random", episodes=1, steps=3, jobs=0, out=tmp_path / "evaluation")
    with pytest.raises(UsageError, match=r"its plan\.json is that of another kind of run"):
        kept(tmp_path / "evaluation", resume=True)
    with pytest.raises(UsageError, match="pass the folder as out"):
        plain(resume=True)


def text_task(index, stream):
    return {"goal": index} if index < 7 else {index}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"tasks": lambda index, stream: {index}}, "a task that is written to a file is made of numbers"),
        ({"world": makes(Echo, spaces.Text(5))}, "values without a fixed size in the observation of agent"),
    ],
    ids=["task", "observation"],
)
def test_what_could_not_be_written_is_refused_before_anything_is_played(tmp_path, asked, sentence):
    heard = []
    with pytest.raises(UsageError, match=sentence):
        kept(tmp_path / "data", on_rollout=heard.append, **asked)
    assert not heard
    assert not (tmp_path / "data").exists()


class TextTask(TaskWorld):
    def see(self):
        return np.zeros(3)


def test_a_later_task_that_cannot_be_written_loses_nothing_before_it(tmp_path):
    with pytest.raises(UsageError, match=r"a task that is written to a file .* got set"):
        kept(tmp_path / "data", world=TextTask, tasks=text_task)
    assert len(stretto.load_rollouts(tmp_path / "data")) == 7


class Breaks(Drift):
    def reset(self, *, seed=None, options=None):
        if options["task"] == 5:
            raise RuntimeError("it is broken")
        return super().reset(seed=seed)


def number_task(index, stream):
    return index


def test_an_error_of_a_world_loses_nothing_that_has_ended_and_one_in_the_first_rollout_leaves_no_folder(tmp_path):
    with pytest.raises(RuntimeError, match="it is broken"):
        kept(tmp_path / "data", world=Breaks, tasks=number_task)
    assert [one.index for one in stretto.load_rollouts(tmp_path / "data")] == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="it is broken"):
        kept(tmp_path / "none", world=Breaks, tasks=[5])
    assert not (tmp_path / "none").exists()


def test_changed_code_is_refused_unless_it_is_accepted_and_then_it_is_on_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "import numpy as np\nfrom tests.worlds import Drift\n\n\nclass Mine(Drift):\n    pass\n"
    (tmp_path / "mine.py").write_text(source)
    interrupted("data", world="mine.py:Mine")
    (tmp_path / "mine.py").write_text(source + "    changed = True\n")
    with pytest.raises(UsageError, match=r"rollouts of one collection .* the file mine\.py was .* --accept-changes"):
        kept("data", world="mine.py:Mine", resume=True)
    assert len(kept("data", world="mine.py:Mine", resume=True, accept_changes=True)) == 12
    (change,) = json.loads((tmp_path / "data/plan.json").read_text())["accepted_changes"]
    assert change["rollouts"] == 5
    assert "the file mine.py was" in change["changes"][0]


def test_what_has_ended_is_written_after_some_seconds_though_the_next_takes_long(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PART_ROWS", 10_000)
    monkeypatch.setattr(rollout_folder, "PART_SECONDS", 0.01)
    written = []

    def hear(rollout):
        pause = threading.Event()
        while not written and not pause.wait(0.01):  # a test has two minutes
            written.extend(complete_parts(tmp_path / "data"))

    kept(tmp_path / "data", 3, on_rollout=hear)
    assert written


# ---- a full disk, damage, kills ----


@pytest.fixture
def small_files():
    """Let no file of this process be larger than so many bytes, as where a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_stops_it_with_a_sentence_and_what_was_written_stays_good(tmp_path, small_files):
    def hear(rollout):
        if len(complete_parts(tmp_path / "data")) == 2:
            small_files(100)

    with pytest.raises(ResourceError, match=r"rollouts could not be written .*: File too large; .*collect --resume"):
        kept(tmp_path / "data", 40, on_rollout=hear)
    small_files(-1)
    some = stretto.load_rollouts(tmp_path / "data")
    assert len(complete_parts(tmp_path / "data")) == 2
    assert kept(tmp_path / "data", 40, resume=True).digest() == plain(40).digest()
    assert some.digest() == plain(len(some)).digest()


def test_what_is_too_much_for_one_file_is_written_in_smaller_parts(tmp_path, small_files, monkeypatch):
    monkeypatch.setattr(files, "PART_ROWS", 10_000)
    kept(tmp_path / "data", 40, on_rollout=lambda one: small_files(6_000) if one.index == 39 else None)
    small_files(-1)
    assert stretto.load_rollouts(tmp_path / "data").digest() == plain(40).digest()
    assert len(complete_parts(tmp_path / "data")) > 2


def test_a_damaged_part_is_told_before_anything_is_played(tmp_path):
    interrupted(tmp_path / "data")
    numbers = next((tmp_path / "data").glob("*/rollouts*.safetensors"))
    numbers.write_bytes(numbers.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedCheckpoint, match="sha256"):
        kept(tmp_path / "data", resume=True)


PROGRAM = """
import sys
import stretto
from stretto.collection import files
from tests.worlds import Drift

files.PART_ROWS = 20
resume = (files.Path("data") / "plan.json").exists()
stretto.collect(Drift, "random", 400, out="data", resume=resume, backend="process", workers=2, wait=sys.argv[1],
    num_envs=5, check_reuse=False, on_rollout=lambda one: print(one.index, flush=True))
print("done")
"""


@pytest.mark.parametrize("wait", ["whole", "ready-first"])
def test_after_kills_at_any_moment_the_set_is_exact(tmp_path, wait):
    moments, done = random.Random(wait), ""
    for _ in range(5):
        words = [sys.executable, "-c", PROGRAM, wait]
        environment = {"PYTHONPATH": ":".join(sys.path)}
        program = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment)
        known = sum(len(StoredPart(part)) for part in complete_parts(tmp_path / "data"))
        for _ in range(known + moments.randrange(1, 60)):
            done = program.stdout.readline()
        threading.Event().wait(moments.uniform(0, 0.01))  # in the middle of whatever it does
        program.send_signal(signal.SIGKILL)
        program.communicate()
        assert done.strip().isdecimal()
    assert kept(tmp_path / "data", 400, resume=True).digest() == plain(400).digest()
    indices = [one.index for part in complete_parts(tmp_path / "data") for one in StoredPart(part)]
    assert sorted(indices) == list(range(400))
