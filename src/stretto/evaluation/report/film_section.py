"""The section of a page with films of episodes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from stretto.evaluation.films.film_files import MIME_TYPES
from stretto.evaluation.records import RecordKey
from stretto.evaluation.report.page_elements import text

MOST_FILM_BYTES = 64 * 1024 * 1024
"""Of the films in a page, all together; what is beyond is linked."""


def film_section(films: Mapping[RecordKey, Path]) -> str:
    """Return the films of episodes, as part of the page; nothing if there are none."""
    figures, left = "", MOST_FILM_BYTES
    for (mission, label, episode), path in films.items():
        caption = f"<figcaption>{text(mission)} · {text(label)} · episode {episode}</figcaption>"
        size = path.stat().st_size
        left -= size
        if left < 0:
            shown = f'<a href="{text(path.parent.name)}/{text(path.name)}">{text(path.name)}</a>'
        else:
            kind = MIME_TYPES[path.suffix]
            source = f'src="data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"'
            video = f"<video controls loop muted playsinline {source}></video>"
            shown = video if kind.startswith("video") else f'<img alt="film of an episode" {source}>'
        figures += f'<figure class="film">{caption}{shown}</figure>\n'
    return f'<div class="films">{figures}</div>' if figures else ""
