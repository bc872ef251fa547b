"""`stretto policies`: which policies are known by name."""

from __future__ import annotations

from stretto.cli.text import print_list, warn
from stretto.policies.registry import known_policies


def policies_command() -> None:
    """List the policies that are known by name."""
    known = known_policies()
    print_list(("policy", "what it does"), [(name, one.summary) for name, one in known.items() if one.error is None])
    warn(f"the policy {name} cannot be used: {one.error}" for name, one in known.items() if one.error is not None)
