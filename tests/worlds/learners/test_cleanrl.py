"""CleanRL's own scripts, with one line changed. They are no package: put a clone of its repository into $STRETTO_WORLDS."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(os.environ.get("STRETTO_WORLDS", "")) / "cleanrl" / "cleanrl"
GYM = "import gymnasium as gym\n"

if not ("STRETTO_WORLDS" in os.environ and SCRIPTS.is_dir()):
    pytest.skip("STRETTO_WORLDS has no folder cleanrl, a clone of CleanRL's repository", allow_module_level=True)


def run(script, folder, *words):
    """Run a script with the line that imports Gymnasium changed, and return what it printed."""
    source = (SCRIPTS / script).read_text()
    assert source.count(GYM) == 1
    (folder / script).write_text(source.replace(GYM, "import stretto.interop.cleanrl as gym\n"))
    environ = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent)}
    ran = subprocess.run(
        [sys.executable, script, *words], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_its_ppo_runs_and_learns_with_one_line_changed(tmp_path):
    printed = run("ppo.py", tmp_path, "--total-timesteps", "20000", "--no-cuda")
    returns = [float(one) for one in re.findall(r"episodic_return=\[?([\d.]+)", printed)]
    assert len(returns) > 100
    assert sum(returns[-20:]) > 2 * sum(returns[:20])


def test_it_computes_the_same_each_time(tmp_path):
    words = "ppo.py", tmp_path, "--total-timesteps", "2048", "--no-cuda"
    first, again = (re.findall(r"global_step=.*", run(*words)) for _ in range(2))
    assert first
    assert first == again
