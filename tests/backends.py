"""The rows that one body of a test runs on."""

from __future__ import annotations

from typing import Any

import pytest

OPTIONS: dict[str, dict[str, Any]] = {
    "serial": {"backend": "serial"},
    "thread": {"backend": "thread", "workers": 2},
    "process": {"backend": "process", "workers": 2},
    "process-isolated": {"backend": "process", "workers": 2, "isolate": True},
    "process-message": {"backend": "process", "workers": 2, "transport": "message"},
}

here_and_elsewhere = pytest.mark.parametrize(
    "options", [OPTIONS["serial"], OPTIONS["process-isolated"]], ids=["serial", "process-isolated"]
)
"""For what is decided by the code that steps worlds, which is the same on every backend: what it raises is told the same."""

every_backend = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
