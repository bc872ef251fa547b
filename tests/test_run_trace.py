"""A trace passes on whatever it records, and changes nothing of it."""

from __future__ import annotations

from stretto import trace
from stretto.run_trace import traced_runner


class Settling:
    """A runner that replaces its own methods once it knows better, as the adaptive one does."""

    def __init__(self):
        self.ask, self.replies = self.first_ask, self.first_replies

    def begin(self, roles):
        pass

    def first_ask(self, questions, limit_seconds=None):
        self.ask = lambda questions, limit_seconds=None: None

    def first_replies(self):
        self.replies = lambda: ["later"]
        return ["first"]


def test_a_runner_that_replaces_its_own_methods_is_asked_through_the_new_ones():
    log = trace.start()
    try:
        runner = traced_runner(Settling())
        found = []
        for _ in range(3):
            runner.ask([])
            found += runner.replies()
    finally:
        trace.stop()
    assert found == ["first", "later", "later"]
    assert [name for name, *_ in log.spans] == ["policy ask", "policy step"] * 3
