"""What is freed is kept for the next update."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS_OF_UPDATES = """
import resource
import numpy as np
from stretto.training.allocator import keep_freed_memory
assert keep_freed_memory() and keep_freed_memory()
def update():
    arrays = [np.ones(1 << 18, np.float32) for _ in range(4)]
update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    update()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_arrays_that_are_freed_and_allocated_again_cause_no_page_faults() -> None:
    ran = subprocess.run([sys.executable, "-c", FAULTS_OF_UPDATES], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 100  # 4 arrays of 256 pages, 100 times, would be 102,400
