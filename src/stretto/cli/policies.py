"""`stretto policies`: which policies are known by name."""

from __future__ import annotations

from stretto.cli.text import print_usable
from stretto.policies.registry import known_policies


def policies_command() -> None:
    """List the policies that are known by name."""
    print_usable("policy", "what it does", known_policies())
