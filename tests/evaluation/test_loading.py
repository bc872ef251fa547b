"""Signs of life while something is loaded."""

from __future__ import annotations

import threading

from stretto.evaluation.playing import loading as module
from stretto.evaluation.playing.loading import Loading


def finish(loading):
    """Wait until nobody shows signs of life any more."""
    if (thread := loading._thread) is not None:
        thread.join(20.0)
        assert not thread.is_alive()


def test_there_are_signs_of_life_as_long_as_something_is_loaded_also_inside_of_something_else():
    beats = threading.Semaphore(0)
    loading = Loading(beats.release)
    with loading():
        assert beats.acquire(timeout=20.0)
        with loading():
            assert beats.acquire(timeout=20.0)
        for _ in range(3):
            assert beats.acquire(timeout=20.0)
    finish(loading)
    assert loading._thread is None


def test_one_thread_serves_all_that_is_loaded_shortly_after_each_other():
    loading, threads = Loading(lambda: None), set()
    for _ in range(100):
        with loading():
            threads.add(loading._thread)
    assert len(threads) == 1
    finish(loading)
    with loading():
        assert loading._thread not in threads
    finish(loading)


def test_they_end_when_it_takes_too_long(monkeypatch):
    monkeypatch.setattr(module, "LOADING_SECONDS", -1.0)
    beats = []
    loading = Loading(lambda: beats.append(None))
    with loading():
        pass
    finish(loading)
    assert beats == []
