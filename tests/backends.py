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

every_backend = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
