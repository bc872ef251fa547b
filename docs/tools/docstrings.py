"""Docstrings as the site needs them: in the code they are written for people who read the code."""

import re

import griffe

TOGETHER = re.compile(r"^(?P<indent> +)(?P<names>\w+(?:, \w+)+): (?P<text>.+(?:\n(?P=indent) +.+)*)", re.MULTILINE)
TREE = re.compile(r"^\S.*\n(?:[ │├└].*\n?)+", re.MULTILINE)


def apart(found):
    """Give each of the parameters that are explained together, `cogs, map_seed: ...`, a row of its own."""
    return "\n".join(f"{found['indent']}{name}: {found['text']}" for name in found["names"].split(", "))


class ForTheSite(griffe.Extension):
    def on_function(self, *, func, **_):
        if func.docstring is not None and "\nArgs:\n" in func.docstring.value:
            func.docstring.value = TOGETHER.sub(apart, func.docstring.value)

    def on_module(self, *, mod, **_):
        if mod.docstring is not None and "├──" in mod.docstring.value:
            mod.docstring.value = TREE.sub(lambda tree: f"```text\n{tree[0].rstrip()}\n```\n", mod.docstring.value)
