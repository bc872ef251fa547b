import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


NEEDS = {
    "stable_baselines": "stable_baselines3",
    "own_learner": "torch",
    "memory": "torch",
    "foundry": "torch",
    "learn_to_learn": "torch",
}
"""What is not installed with every version of Python that the tests run on."""

SHORTER = {"foundry": ["1024"], "learn_to_learn": ["1024"], "memory": ["2048"], "own_learner": ["2048"]}
"""What examples are given that would take minutes."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_stands(example, tmp_path):
    if example.stem in NEEDS:
        pytest.importorskip(NEEDS[example.stem])
    ran = subprocess.run(
        [sys.executable, example, *SHORTER.get(example.stem, [])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    assert "Traceback" not in ran.stderr
