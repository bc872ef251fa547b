"""Sorrel is on no registry: its folder is looked for in $STRETTO_WORLDS. Workers get the path of imports as it is here."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

_FOLDER = Path(os.environ.get("STRETTO_WORLDS", "")) / "sorrel"

# Without what it needs it cannot be imported: its tests are then skipped.
if (
    find_spec("omegaconf") is not None
    and "STRETTO_WORLDS" in os.environ
    and _FOLDER.is_dir()
    and str(_FOLDER) not in sys.path
):
    sys.path.append(str(_FOLDER))
