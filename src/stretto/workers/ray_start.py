"""Starting Ray on this machine alone, or connecting to one that runs."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stretto.errors import UsageError

INSTALL = "pip install 'stretto[ray]'"


def ray_or_remedy() -> Any:
    """Import Ray, or say how to install it."""
    # Ray sets this to what hides GPUs from tasks that have none; it warns otherwise.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"a cluster needs Ray, which is not installed ({error}); run: {INSTALL}") from None
    return ray


def connect(ray: Any, address: str, cpus: int | None) -> dict[str, str | None]:
    """Connect to a cluster; return environment variables that have to be restored when it is closed."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        with loopback_alone() as before:
            ray.init(
                address="local", num_cpus=cpus, include_dashboard=False, object_store_memory=_store_bytes(), **quiet
            )
        return before
    if cpus is not None:
        raise UsageError(f"cpus says how many a cluster of its own has, got {cpus} for {address!r}; use 'local'")
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UsageError(
            f"a cluster must be reachable, got {address!r} ({first}); start one with `ray start --head`, or use 'local'"
        ) from None
    return {}


@contextmanager
def loopback_alone() -> Iterator[dict[str, str | None]]:
    """Let a Ray that is started in the body listen to this machine alone, behind a token that is written nowhere."""
    from ray._private import ray_constants
    from ray._private.authentication_test_utils import reset_auth_token_state

    given = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # one that has a single machine has loopback addresses
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # read again by whoever connects, as long as it runs
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # work is not to wait for whatever else the machine does, as it does not without Ray
    }
    before = {name: os.environ.get(name) for name in (*given, "RAY_AUTH_MODE")}  # Ray sets the last one itself
    several = ray_constants.ENABLE_RAY_CLUSTER
    os.environ.update(given)
    reset_auth_token_state()
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield before
    except BaseException:
        restore(before)
        raise
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = several


def restore(environment: Mapping[str, str | None]) -> None:
    """Give environment variables the values that they had."""
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _store_bytes() -> int:
    """Return how large the object store of a Ray of our own is: what crosses is small beside the memory of a machine."""
    import psutil

    return max(80 << 20, min(2 << 30, int(psutil.virtual_memory().available) // 8))
