"""Spans of all processes, while a trace runs and no longer."""

from __future__ import annotations

import json
import os

import numpy as np

import stretto
from stretto import trace


def test_every_step_has_a_span_in_the_caller_and_in_each_worker_and_none_after_the_end(tmp_path):
    with stretto.make_vec("CartPole-v1", 4, backend="process", workers=2, isolate=True) as envs:
        envs.reset(seed=0)
        actions = np.zeros(4, int)
        envs.step(actions)
        log = trace.start()
        try:
            for _ in range(5):
                envs.step(actions)
        finally:
            trace.stop()
        for _ in range(5):
            envs.step(actions)
        seen = [(name, process) for name, _, _, process, _ in log.spans]
        assert sorted(seen) == sorted(
            [("step", os.getpid())] * 5 + [("signal", pid) for pid in envs.worker_pids for _ in range(5)]
        )
    assert all(duration > 0 for _, _, duration, _, _ in log.spans)
    log.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events} == {"step", "signal", "process_name"}
