"""A wheel holds all that a user needs: it is installed into an empty environment, and runs what the README shows."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks_of

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run(*PIP, "wheel", "-qq", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=110, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wheel_has_every_file_of_the_package_and_no_other(wheel):
    package = ROOT / "src" / "stretto"
    wanted = {str(path.relative_to(ROOT / "src")) for path in package.rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as files:
        names = {name for name in files.namelist() if ".dist-info/" not in name}
    assert names == {name for name in wanted if "__pycache__" not in name}


def test_an_empty_environment_with_the_wheel_runs_what_the_readme_shows(wheel, tmp_path):
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    run(*PIP, "--python", python, "install", "-qq", "--no-deps", wheel)
    (twenty_lines,) = blocks_of(ROOT / "README.md", "python")
    (tmp_path / "readme.py").write_text(twenty_lines.code)
    # What the wheel depends on is taken from the tests' environment, so that nothing is downloaded. Packages that are
    # installed from a checkout, as Stretto is there, are not found in this way.
    elsewhere = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    where = run(python, "-c", "import stretto; print(stretto.__file__)", cwd=tmp_path, env=elsewhere)
    assert Path(where.strip()).is_relative_to(environment)
    shown = run(python, "readme.py", cwd=tmp_path, env=elsewhere)
    assert "Statistics(steps=" in shown
    version = run(environment / "bin" / "stretto", "--version", cwd=tmp_path, env=elsewhere)
    assert version.startswith("stretto ")
