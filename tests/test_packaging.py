"""What is installed, and what is said about it, is what there is."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
IMPORTED_AS = {"pyyaml": "yaml", "pillow": "PIL", "tensorboard": r"torch\.utils\.tensorboard"}
IMPORTED_AS |= dict.fromkeys(("onnx", "onnxscript"), "torch")  # which imports them when it writes such a file
FOR_WORLDS = {"mujoco", "imageio"}
"""Gymnasium imports these, for worlds of its own."""


def packages(requirements):
    return [re.match(r"[\w-]+", requirement)[0] for requirement in requirements]


EXTRAS = {
    name: packages(wanted)
    for name, wanted in PROJECT["optional-dependencies"].items()
    if name not in ("all", "dev", "docs")
}


@pytest.mark.parametrize(
    "package", [*packages(PROJECT["dependencies"]), *(one for wanted in EXTRAS.values() for one in wanted)]
)
def test_what_is_installed_with_stretto_is_imported_somewhere(package):
    name = IMPORTED_AS.get(package, package.replace("-", "_"))
    assert package in FOR_WORLDS or re.search(rf"^\s*(import|from) {name}\b", SOURCES, re.MULTILINE)


def test_extras_that_messages_name_exist():
    assert set(re.findall(r"stretto\[(\w+)\]", SOURCES)) <= set(EXTRAS)


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_the_guide_says_what_an_extra_is_for(extra):
    assert f"| `{extra}` |" in (ROOT / "docs" / "guide" / "install.md").read_text()


@pytest.mark.parametrize(
    "package", [*packages(PROJECT["dependencies"]), *(one for some in EXTRAS.values() for one in some)]
)
def test_the_design_says_why_a_package_is_needed(package):
    _, _, dependencies = (ROOT / "docs" / "design.md").read_text().partition("## Dependencies")
    named = re.findall(r"^\| ([\w, -]+) \|", dependencies, re.MULTILINE)
    assert package in {name for row in named for name in row.split(", ")} | {"stretto"}
