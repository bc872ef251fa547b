"""Rollouts on disk: read back bit by bit, and damage is told."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.collection import files
from stretto.collection.task_json import decoded, encoded
from stretto.errors import UsageError
from tests.collection.test_collector import Chance, Decides, Remembers
from tests.worlds import Crowd, Drift, Echo, TaskWorld, makes


def noop(observation):
    return "a"


TASKS = [1, 2.5, np.float32(3.25), {"goal": np.arange(3), (1, "x"): [None, True]}, "text", (1, (2,)), float("inf")]


@pytest.mark.parametrize("form", ["safetensors", "npz"])
@pytest.mark.parametrize(
    ("world", "policy", "options"),
    [
        (makes(Drift, 5), Chance, {"episodes_per_task": 2}),
        (makes(Drift, 5), Remembers, {}),
        (Crowd, Decides, {}),
        (Drift, "random", {"tasks": TASKS, "max_steps": 4}),
    ],
    ids=["says", "states", "agents", "tasks"],
)
def test_what_is_saved_is_loaded_bit_by_bit(world, policy, options, form, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PART_ROWS", 30)
    wanted = stretto.collect(world, policy, 9, backend="serial", **options)
    wanted.save(tmp_path / "data", form)
    found = stretto.load_rollouts(tmp_path / "data")
    assert found.digest() == wanted.digest()
    assert len(list((tmp_path / "data").iterdir())) > 1
    wanted[:2].save(tmp_path / "data", form)
    assert stretto.load_rollouts(tmp_path / "data").digest() == wanted[:2].digest()


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_tasks_are_written_exactly(task):
    found = decoded(json.loads(json.dumps(encoded(task))))
    assert repr(found) == repr(task)
    assert type(found) is type(task)


def test_what_cannot_be_written_exactly_is_refused(tmp_path):
    rollouts = stretto.collect(makes(TaskWorld, 2), "random", 2, backend="serial")
    with pytest.raises(UsageError, match="made of numbers, texts, arrays, lists, tuples and dicts, got set"):
        encoded({1, 2})
    with pytest.raises(UsageError, match="safetensors or npz, got 'csv'"):
        rollouts.save(tmp_path, "csv")
    with pytest.raises(UsageError, match="values without a fixed size in observations"):
        stretto.collect(makes(Echo, spaces.Text(5)), noop, 1, max_steps=2, backend="serial").save(tmp_path)


def test_damage_is_told(tmp_path):
    with pytest.raises(UsageError, match="which has none"):
        stretto.load_rollouts(tmp_path)
    stretto.collect(makes(Drift, 5), "random", 3, backend="serial").save(tmp_path)
    numbers = next(tmp_path.glob("*/rollouts*.safetensors"))
    content = bytearray(numbers.read_bytes())
    content[-1] ^= 1
    numbers.write_bytes(content)
    with pytest.raises(UsageError, match="sha256"):
        stretto.load_rollouts(tmp_path)
