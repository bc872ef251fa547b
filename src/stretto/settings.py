"""A name with settings, as users write it for a mission or a policy: `NAME,key=value,kw.x=1`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.errors import UsageError
from stretto.registry import near

_KEY = r"\s*[A-Za-z_][\w.]*\s*="
_KEYWORD = "kw."


@dataclass(frozen=True, slots=True)
class Settings:
    """A name, the values of its settings as texts, and the keyword arguments: what was written as `kw.x=1`."""

    name: str
    values: Mapping[str, str]
    kwargs: Mapping[str, Any]


def parse_settings(text: str, what: str, first: str, keys: Sequence[str]) -> Settings:
    """Take `NAME,key=value,...` apart; the name may also be written as the setting `first`.

    `what` it is stands in messages, such as "policy". Values of `kw.` are Python literals where they can be, else text.
    """
    text = text.strip()
    known = (first, *keys, f"{_KEYWORD}NAME")
    values: dict[str, str] = {}
    for number, item in enumerate(_items(text)):
        if number == 0 and not re.match(_KEY, item):
            values[first] = item.strip()
            continue
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in known[:-1] and not (key.startswith(_KEYWORD) and key[len(_KEYWORD) :].isidentifier()):
            raise UsageError(f"a {what}'s settings are {', '.join(known)}, got {key!r} in {text!r}{near(key, known)}")
        if key in values or not value:
            raise UsageError(
                f"each setting of a {what} has one value, got {key!r} {'twice' if value else 'without one'} in {text!r}"
            )
        values[key] = value
    if first not in values:
        raise UsageError(f"a {what}'s settings name its {first}, got {text!r}; add {first}=NAME")
    name = values.pop(first)
    kwargs = {key[len(_KEYWORD) :]: literal(value) for key, value in values.items() if key.startswith(_KEYWORD)}
    return Settings(name, {key: value for key, value in values.items() if key in keys}, kwargs)


def has_settings(text: str) -> bool:
    """Whether a text has settings, and is not just a name."""
    return bool(re.search(rf"(^|,){_KEY}", text))


def settings_text(name: str, settings: Mapping[str, Any]) -> str:
    """Return a text for a name with these settings; what is no Python literal cannot be read back."""
    return ",".join([name, *(f"{key}={value!r}" for key, value in settings.items())])


def _items(text: str) -> Iterator[str]:
    """Split at the commas before a `key=`, except within a literal: `kw.sizes=[1,2]`, `kw.text="a,b=c"`."""
    pieces = re.split(rf",(?={_KEY})", text)
    while pieces:
        count = 1
        if pieces[0].partition("=")[2].lstrip()[:1] in {*"([{'\""}:
            values = (",".join(pieces[:n]).partition("=")[2].strip() for n in range(1, len(pieces) + 1))
            count = next((n for n, value in enumerate(values, 1) if literal(value) != value), 1)
        yield ",".join(pieces[:count])
        del pieces[:count]


def literal(text: str) -> Any:
    """Return the Python value that a text stands for, or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
