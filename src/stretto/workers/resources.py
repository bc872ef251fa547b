"""The system's refusals, as one error of ours."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from stretto.errors import ResourceError

_SHORTAGES = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS}  # descriptors
    | {errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EDQUOT}  # processes and memory
)


@contextmanager
def resources(what: str) -> Iterator[None]:
    """Turn a lack of descriptors, processes or memory in the body into a `ResourceError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _SHORTAGES:
            raise
        raise ResourceError(
            f"{what} would take more descriptors, processes or memory than the system allows ({os.strerror(error.errno)}); "
            f"use fewer workers or environments, or raise the limit (see `ulimit -a`)"
        ) from None
