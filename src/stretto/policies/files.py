"""Python files as modules, wherever they lie."""

from __future__ import annotations

import hashlib
import sys
import threading
from pathlib import Path
from types import ModuleType

_loading = threading.RLock()


def module_from_file(path: Path) -> ModuleType:
    """Import a file as a module of its own, once for as long as it stays as it is; it can import its neighbours."""
    source = path.read_bytes()
    # Named by what it holds: a file that was changed since is loaded anew.
    name = f"{path.stem}_{hashlib.sha256(bytes(path) + source).hexdigest()[:12]}"
    with _loading:
        if name in sys.modules:
            return sys.modules[name]
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # last: it can import its neighbours, and they hide nothing
        module = ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module  # dataclasses and pickle look for it there
        try:
            exec(compile(source, path, "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
        return module
