"""What `stretto eval` begins with before it has read its command line: only what the missions seem to need."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

CODE = """
import sys
from stretto.cli.early import start_early
from stretto.workers.launcher import launcher
start_early(sys.argv[1:])
print(launcher().pid is not None)
"""


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        ("eval -m machina_1 -p random", True),
        ("eval -p random --mission=machina_1.clips --jobs 2", True),
        ("eval -m foundry_1 -m cogames:arena", True),
        ("eval -m machina_1 --jobs 0", False),
        ("eval -m machina_1 -j=0", False),
        ("eval -m foundry_1 -m CartPole-v1 -m CartPole -m ./world.py:World -m pz:mpe2.simple_v3", False),
        ("missions -m machina_1", False),
        ("eval -m", False),
        ("", False),
    ],
)
def test_workers_get_ready_early_for_what_may_be_a_mission_of_cogames(line, starts, tmp_path):
    (tmp_path / "cogames.py").touch()  # installed, as far as anybody can see who does not import it
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.check_output([sys.executable, "-c", CODE, *line.split()], text=True, env=environ)
    assert told == f"{starts}\n"


def test_where_cogames_is_not_installed_nothing_begins_early():
    if importlib.util.find_spec("cogames") is not None:
        pytest.skip("cogames is installed")
    assert subprocess.check_output([sys.executable, "-c", CODE, "eval", "-m", "machina_1"], text=True) == "False\n"


def test_a_command_imports_no_other_command():
    code = "import sys; from stretto.cli.app import main; main(['missions', '--help']); print(*sys.modules)"
    names = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert "stretto.cli.missions" in names
    assert not {"stretto.cli.train", "stretto.cli.collect", "stretto.cli.bench", "stretto.cli.eval"} & set(names)
