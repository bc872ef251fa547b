"""The command line: parse, call, print, and nothing else."""

import faulthandler
import os
import signal
import sys
from contextlib import suppress

from stretto.hash_seed import take_workers_seed

_INTERRUPTED = 130


def main() -> int:
    """Run the command `stretto`; Ctrl-C is answered in one line from the first import on.

    The process has its workers' hash seed: worlds that it plays itself (`--jobs 0`) go the same way as in workers.
    """
    try:
        take_workers_seed()
        with suppress(OSError, RuntimeError, ValueError):  # stderr is closed
            faulthandler.enable()  # a world that crashes in this process shows the line where it did
        # While libraries are imported, Ctrl-C raises nothing: some of them make it an ImportError of their own.
        raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if raises:
            signal.signal(signal.SIGINT, lambda *_: os._exit(_say_interrupted()))
        from stretto.cli.early import start_early

        start_early(sys.argv[1:])
        from stretto.cli.app import main as run
        from stretto.cli.text import say_warnings

        say_warnings()
        if raises:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:
        return _say_interrupted()


def _say_interrupted() -> int:
    print("stretto: interrupted", file=sys.stderr, flush=True)
    return _INTERRUPTED


__all__ = ["main"]
