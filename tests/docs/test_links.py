"""Links between pages, as an editor or a code host follows them; `make docs` checks those of the site."""

import importlib.util
import re
import unicodedata

import pytest

from tests.docs.pages import PAGES, ROOT, page_name, prose_of

LINK = re.compile(r"\]\((?!\w+:)([^)\s]*)\)")


def anchors_of(page):
    """Return the places of a page: its headings, as they are named in links."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    plain = (re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading).replace("`", "").lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", unicodedata.normalize("NFKD", one)).strip().replace(" ", "-") for one in plain}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_to_files_and_headings_lead_somewhere(page):
    broken = []
    for link in LINK.findall(prose_of(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert not broken


def test_the_picture_of_the_layers_is_that_of_the_contract():
    spec = importlib.util.spec_from_file_location("draw_layers", ROOT / "docs" / "tools" / "draw_layers.py")
    draw_layers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw_layers)
    remedy = "draw it again: python docs/tools/draw_layers.py"
    assert draw_layers.PICTURE.read_text() == draw_layers.picture(), remedy
