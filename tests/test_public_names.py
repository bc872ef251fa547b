"""What a user sees of the package itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stretto
import stretto.errors

ROOT = Path(__file__).parent.parent


def test_dir_lists_the_public_names_and_no_others():
    assert set(dir(stretto)) == {*stretto.__all__, "__version__"}
    assert all(hasattr(stretto, name) for name in dir(stretto))


INTERRUPTED = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt as error:
    raise ImportError("as compiled modules do that were interrupted") from error
"""


@pytest.mark.parametrize("command", [["-m", "stretto"], [str(Path(sys.executable).with_name("stretto"))]], ids=len)
def test_ctrl_c_while_python_still_imports_is_answered_in_one_line(command, tmp_path):
    (tmp_path / "numpy.py").write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, *command, "missions"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stretto: interrupted\n")


def test_the_reference_has_every_public_name():
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    errors = {name for name in vars(stretto.errors) if not name.startswith("_")}  # on a page of their own
    assert [name for name in stretto.__all__ if f"::: stretto.{name}\n" not in pages and name not in errors] == [
        "AutoresetMode"  # Gymnasium's
    ]
