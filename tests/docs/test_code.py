"""All code that the documentation shows does what it says: Python is run, and commands are parsed."""

import contextlib
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
import typer
import yaml

from stretto.cli.app import _with_values, make_app
from tests.docs.pages import PAGES, ROOT, blocks_of, page_name, prose_of

SHORTER = {
    "steps=2_000": "steps=200",
    "60_000": "2_000",
    "60000": "2000",
    "100_000)": "1_024)",
    "10_000": "1_000",
    "episodes=100": "episodes=4",
}
"""How pages that would take minutes are made shorter. Nothing else is changed."""

NEEDS = {
    "cluster.md": "ray",
    "training.md": "torch",
    "vector_environments.md": "stable_baselines3",
    "coming_from.md": "stable_baselines3",
    "policies.md": "stable_baselines3",
    "cyborg.md": "CybORG",
    "cogames.md": "cogames",
    "torchrl.md": "torchrl",
    "rllib.md": "lz4",
    "envpool.md": "envpool",
    "sorrel.md": "sorrel",
    "sweeps.md": "torch",
    "recorded.md": "torch",
}
"""What is not installed with every version of Python that the tests run on."""

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
COMMANDS = typer.main.get_command(make_app())
FIRST = ROOT / "docs" / "guide" / "getting_started.md"
WITH_PYTHON = [page for page in PAGES if blocks_of(page, "python")]
WITH_COMMANDS = [page for page in PAGES if blocks_of(page, "bash")]


def shorter(code):
    for long, short in SHORTER.items():
        code = code.replace(long, short)
    return code


def run(*arguments, folder):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, f"{shlex.join(map(str, arguments))}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


def write_files(page, folder):
    """Write the blocks of a page that are files, and return their names."""
    blocks = [block for block in blocks_of(page, "python", "yaml") if block.file]
    for block in blocks:
        (folder / block.file).write_text(shorter(block.code))
    return [block.file for block in blocks if block.language == "python"]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_block_of_a_page_is_of_a_kind_that_is_tested_or_shows_output(page):
    assert {block.language for block in blocks_of(page)} <= {"python", "bash", "yaml", "text"}
    for block in blocks_of(page, "yaml"):
        assert yaml.safe_load(block.code)


@pytest.fixture(autouse=True)
def _datasets_in_a_folder_of_the_test(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))  # else they lie in the home folder


@pytest.mark.parametrize("page", WITH_PYTHON, ids=page_name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    for file in write_files(page, tmp_path):
        run(file, folder=tmp_path)
    blocks = [block for block in blocks_of(page, "python") if not block.file]
    # A line of code stays in its line, so that a traceback says where in the page it is.
    lines = [""] * max((block.first_line + len(block.lines) for block in blocks), default=0)
    for block in blocks:
        begin = block.first_line - 1
        lines[begin : begin + len(block.lines)] = block.lines
    (tmp_path / f"{page.stem}.md.py").write_text(shorter("\n".join(lines)))
    run(f"{page.stem}.md.py", folder=tmp_path)


def commands_of(page):
    """Return the commands of a page as words, without comments."""
    for block in blocks_of(page, "bash"):
        for line in block.code.replace("\\\n", " ").splitlines():
            if words := shlex.split(line.partition(" > ")[0], comments=True):
                yield words


def check_stretto(words):
    """Parse what follows `stretto` as the command line does, and stop before anything happens."""
    if words == ["--version"]:
        return
    name, *rest = words
    COMMANDS.commands[name].make_context(name, list(_with_values(rest))).close()


def check_command(words):
    match words:
        case ["stretto", *rest]:
            check_stretto(rest)
        case ["make", *rest]:
            assert {word for word in rest if "=" not in word} <= {*TARGETS}
        case ["pip", "install", *rest]:
            named = [re.search(r"\[(.+)\]$", word) for word in rest]
            assert {one for found in named if found for one in found[1].split(",")} <= {*EXTRAS}
        case ["python", file]:
            assert (ROOT / file).exists() or file in [
                block.file for page in PAGES for block in blocks_of(page, "python")
            ]
        case ["source", ".venv/bin/activate"] | ["mkdir", "-p", _] | ["cd", _] | ["tensorboard", "--logdir", _]:
            pass
        case _:
            raise AssertionError("no test knows this command")


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=page_name)
def test_the_commands_of_a_page_exist_with_their_options(page):
    wrong = []
    for words in commands_of(page):
        try:
            check_command(words)
        except (Exception, SystemExit) as error:
            wrong.append(f"{shlex.join(words)}: {getattr(error, 'message', error)}")
    assert not wrong


def test_the_commands_of_the_first_page_run_one_after_the_other(tmp_path):
    pytest.importorskip("torch")
    write_files(FIRST, tmp_path)
    for words in commands_of(FIRST):
        if words[0] == "stretto":
            run("-m", "stretto", *map(shorter, words[1:]), folder=tmp_path)


OPTIONS = {
    option
    for command in [COMMANDS, *COMMANDS.commands.values()]
    for parameter in command.params
    for option in (*parameter.opts, *parameter.secondary_opts)
} | {"--help"}
OF_OTHERS = {"--no-deps", "--editable", "--constraint"} | {
    "--parallel-agents",
    "--difficulty",
    "--mission-set",
    "--render",
}
"""Options of pip and of cogames."""


def quoted(page):
    """Return what stands between backticks in the text of a page."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose_of(page))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_options_that_the_text_names_exist(page):
    named = {option for text in quoted(page) for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    if page.name not in ("benchmarks.md", "CHANGELOG.md"):  # which have options of scripts, and of the past
        assert named <= OPTIONS | OF_OTHERS


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=page_name)
def test_names_of_stretto_that_the_text_has_exist(page):
    names = {name for text in quoted(page) for name in re.findall(r"\bstretto(?:\.\w+)+", text)}
    assert not [name for name in names if not exists(name)]


def exists(name):
    """Whether a dotted name is a module, or something in one; modules that need an extra are there all the same."""
    module, _, attribute = name.rpartition(".")
    with contextlib.suppress(ModuleNotFoundError):
        if importlib.util.find_spec(name) is not None:
            return True
    try:
        return hasattr(importlib.import_module(module), attribute)
    except ImportError:
        return False
