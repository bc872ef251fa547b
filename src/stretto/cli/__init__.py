"""The command line: parse, call, print, and nothing else."""

import sys

from stretto.hash_seed import take_workers_seed


def main() -> int:
    """Run the command `stretto`; Ctrl-C is answered in one line from the first import on.

    The process has its workers' hash seed: worlds that it plays itself (`--jobs 0`) go the same way as in workers.
    """
    try:
        take_workers_seed()
        from stretto.cli.app import main as run

        return run()
    except KeyboardInterrupt:
        print("stretto: interrupted", file=sys.stderr)
        return 130


__all__ = ["main"]
