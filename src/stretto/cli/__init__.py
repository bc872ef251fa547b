"""The command line: parse, call, print, and nothing else."""

import sys


def main() -> int:
    """Run the command `stretto`; Ctrl-C is answered in one line from the first import on."""
    try:
        from stretto.cli.app import main as run

        return run()
    except KeyboardInterrupt:
        print("stretto: interrupted", file=sys.stderr)
        return 130


__all__ = ["main"]
