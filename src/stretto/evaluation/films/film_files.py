"""Films of episodes as files: MP4 where imageio-ffmpeg is installed, else GIF."""

from __future__ import annotations

import importlib.util
import io
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.checkpoint import atomic_write
from stretto.errors import UsageError
from stretto.evaluation.records import EpisodeRecord, RecordKey, episode_file_name

if TYPE_CHECKING:
    from stretto.evaluation.playing.rendering import Picture

FOLDER = "videos"
FRAMES_PER_SECOND = 12
MIME_TYPES = {".mp4": "video/mp4", ".gif": "image/gif"}


def film_format() -> str:
    """Return the suffix of the films that can be made here.

    Raises:
        UsageError: if none can.
    """
    if importlib.util.find_spec("imageio_ffmpeg") is not None:
        return ".mp4"
    if importlib.util.find_spec("PIL") is not None:
        return ".gif"
    raise UsageError("films need imageio-ffmpeg (MP4) or Pillow (GIF); pip install 'stretto[video]'")


def film_path(folder: Path, key: RecordKey, suffix: str) -> Path:
    """Return where the film of an episode lies in the folder of an evaluation."""
    return folder / FOLDER / f"{episode_file_name(key)}{suffix}"


def saved_films(folder: Path, records: Iterable[EpisodeRecord]) -> dict[RecordKey, Path]:
    """Return the films of episodes that a folder holds."""
    if not (folder / FOLDER).is_dir():
        return {}
    paths = ((record.key, film_path(folder, record.key, suffix)) for record in records for suffix in MIME_TYPES)
    return {key: path for key, path in paths if path.is_file()}


def write_film(pictures: Sequence[Picture], path: Path) -> Path:
    """Save pictures of one size, as the suffix of `path` says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, _mp4(pictures) if path.suffix == ".mp4" else _gif(pictures))
    return path


def _gif(pictures: Sequence[Picture]) -> bytes:
    from PIL import Image

    first, *others = [Image.fromarray(picture) for picture in pictures]
    content = io.BytesIO()
    first.save(content, "GIF", save_all=True, append_images=others, duration=1000 // FRAMES_PER_SECOND, loop=0)
    return content.getvalue()


def _mp4(pictures: Sequence[Picture]) -> bytes:
    import imageio_ffmpeg

    height, width = pictures[0].shape[:2]
    # H.264 halves the resolution of colours: width and height have to be even.
    edges = ((0, height % 2), (0, width % 2), (0, 0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        writer: Any = imageio_ffmpeg.write_frames(
            str(path),
            (width + width % 2, height + height % 2),
            fps=FRAMES_PER_SECOND,
            macro_block_size=1,
            # One thread and no date: the same pictures give the same file.
            output_params=["-threads", "1", "-fflags", "+bitexact", "-flags:v", "+bitexact", "-movflags", "+faststart"],
        )
        writer.send(None)
        for picture in pictures:
            writer.send(np.ascontiguousarray(np.pad(picture, edges, mode="edge")))
        writer.close()
        return path.read_bytes()
