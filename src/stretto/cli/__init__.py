"""The command line: parse, call, print, and nothing else."""

from stretto.cli.app import main

__all__ = ["main"]
