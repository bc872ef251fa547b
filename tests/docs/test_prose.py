"""Sentences that one reading is enough for are short."""

import re

import pytest

from tests.docs.pages import PAGES, page_name, prose_of

MOST_WORDS = 22
NOT_YET = {"docs/benchmarks.md"}
"""Pages that were written before this rule."""


def sentences_of(page):
    """Return the sentences of a page: code counts as one word, and a cell or an item of a list as a text of its own."""
    text = re.sub(r"`[^`\n]*`", "code", prose_of(page))
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n|\n\s*[-*] |\n\s*\d+\. |\|", text):
        yield from (" ".join(one.split()) for one in re.split(r"(?<=[.!?:;])[\s*)]+", paragraph))


@pytest.mark.parametrize("page", [page for page in PAGES if page_name(page) not in NOT_YET], ids=page_name)
def test_sentences_are_short(page):
    assert not [one for one in sentences_of(page) if len(one.split()) > MOST_WORDS]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_tables_stand_outside_of_lists_and_lists_apart_from_paragraphs(page):
    """The site would show a list that follows as one long paragraph."""
    text = prose_of(page)
    assert not re.findall(r"^ +\|.*", text, re.MULTILINE)
    assert not re.findall(r"^(?![-*#|> ]|\d+\. |\s*$).*\n(?=- )", text, re.MULTILINE)
