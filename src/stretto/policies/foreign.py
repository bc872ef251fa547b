"""What other programs have made and may stand for a policy: how it is recognised, without importing these programs."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

FILES = {
    ".zip": "stretto.policies.sb3_model:Sb3Model",
    ".onnx": "stretto.policies.onnx_file:OnnxFile",
    ".pt": "stretto.policies.torch_module:TorchFile",
    ".pt2": "stretto.policies.torch_module:TorchFile",
}
"""What plays by a network in a file, by the end of its name."""

TORCH_MODULE = "stretto.policies.torch_module", "TorchModule"
"""What plays by a module of torch: where it is, and its name."""

_VERSION_FILE = "_stable_baselines3_version"


def is_sb3_file(path: str | Path) -> bool:
    """Whether a file is a model of Stable-Baselines3."""
    try:
        with zipfile.ZipFile(path) as file:
            return _VERSION_FILE in file.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def is_sb3_model(found: Any) -> bool:
    """Whether an object is a model of Stable-Baselines3, without importing that."""
    names = {(kind.__module__, kind.__name__) for kind in type(found).__mro__}
    return ("stable_baselines3.common.base_class", "BaseAlgorithm") in names


def saved_model(model: Any) -> bytes:
    """Return what the file of a model would hold."""
    file = io.BytesIO()
    model.save(file)
    return file.getvalue()


def is_torch_module(found: Any) -> bool:
    """Whether something is a module of torch, or a class of such, without importing torch."""
    kind = found if isinstance(found, type) else type(found)
    return any((base.__module__, base.__name__) == ("torch.nn.modules.module", "Module") for base in kind.__mro__)
