"""Test Stretto with programs that others wrote, each in an environment of its own: `make test-worlds`.

A folder here is a program. Its `requirements.txt` pins what is installed, beside Stretto itself; paths in it begin in this
repository's folder. Its `.python-version` says which Python it needs, if not the one that runs this. Its `world-folder`
names the folder in $STRETTO_WORLDS that it needs, if it is on no registry. A program that cannot run here is skipped with
a sentence. An environment is made once, and again only if what it is made from has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent
ROOT = PROGRAMS.parent.parent
PLUGINS = ("-p", "pytest_timeout", "-p", "xdist")
"""Those that our tests need. Others come with programs, and need not fit this pytest."""
VERSION = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"


def find_python(program: Path) -> str | None:
    """Return the interpreter that a program needs, or `None` if there is none here."""
    wanted = program / ".python-version"
    if not wanted.exists():
        return sys.executable
    version = wanted.read_text().strip()
    # Whoever chose the Python that runs this may have fixed that choice for all programs that it starts.
    environ = {name: value for name, value in os.environ.items() if name != "PYENV_VERSION"}
    for name in (sys.executable, f"python{version}", "python3", "python"):
        # Where one name stands for several interpreters, the folder's .python-version decides between them.
        try:
            found = subprocess.run(
                [name, "-c", VERSION], cwd=program, env=environ, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            continue
        if found.returncode == 0 and found.stdout.split()[0] == version:
            return found.stdout.split(maxsplit=1)[1].strip()
    return None


def reason_to_skip(program: Path, python: str | None) -> str | None:
    """Return why a program cannot run here, in a sentence."""
    if python is None:
        return f"it needs Python {(program / '.python-version').read_text().strip()}, and there is none on PATH"
    folder = program / "world-folder"
    if not folder.exists():
        return None
    name = folder.read_text().strip()
    worlds = os.environ.get("STRETTO_WORLDS")
    if worlds is None:
        return f"it needs the folder {name}; set STRETTO_WORLDS to the folder that it is in"
    if not (Path(worlds) / name).is_dir():
        return f"STRETTO_WORLDS is {worlds}, which has no folder {name}"
    return None


def digest(program: Path, python: str) -> str:
    """Return what changes if an environment must be made again."""
    made_from = [ROOT / "pyproject.toml", *sorted(program.rglob("*.txt")), *sorted(program.glob("*/pyproject.toml"))]
    parts = [path.read_bytes() for path in made_from]
    return hashlib.sha256(b"\0".join([python.encode(), *parts])).hexdigest()


def install(program: Path, python: str, environment: Path) -> Path:
    """Make a program's environment unless it stands; return its interpreter."""
    inside, stamp = environment / "bin" / "python", environment / ".installed"
    made_from = digest(program, python)
    if not (stamp.exists() and stamp.read_text() == made_from):
        print(f"Installing {program.name} into {environment}", flush=True)
        subprocess.run([python, "-m", "venv", "--clear", environment], check=True)
        pip = [inside, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        wanted = ["--requirement", program / "requirements.txt", "--editable", "."]
        subprocess.run([*pip, *wanted], cwd=ROOT, check=True)
        stamp.write_text(made_from)
    return inside


def main() -> int:
    """Test one program after the other; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description="Test Stretto with programs that others wrote.")
    parser.add_argument("environments", type=Path, help="the folder that environments are made in")
    parser.add_argument("--only", metavar="PROGRAM", help="one of the folders beside this file")
    arguments, of_pytest = parser.parse_known_args()
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    failed = False
    for requirements in sorted(PROGRAMS.glob("*/requirements.txt")):
        program = requirements.parent
        if arguments.only not in (None, program.name):
            continue
        python = find_python(program)
        if (reason := reason_to_skip(program, python)) is not None or python is None:
            print(f"Skipped {program.name}: {reason}", flush=True)
            continue
        inside = install(program, python, arguments.environments.resolve() / program.name)
        print(f"Testing with {program.name}", flush=True)
        tests = subprocess.run(
            [inside, "-m", "pytest", *PLUGINS, program, *of_pytest], cwd=ROOT, env=environ, check=False
        )
        failed |= tests.returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
