"""What a policy is made of."""

from __future__ import annotations

from stretto.identity import Record, canonical_name, identify, name_of
from stretto.policies.spec import PolicySpec


def identify_policy(spec: PolicySpec) -> Record:
    """Return the code, the weights and the settings of a policy; where it runs does not count."""
    settings = {f"kw.{name}": value for name, value in spec.kwargs.items()}
    if spec.proportion != 1.0:
        settings["proportion"] = spec.proportion
    return identify(spec.target, settings, spec.data)


def loading_name(spec: PolicySpec) -> str:
    """Return the name that keys what a policy draws while it is loaded: the same in every process, for every label."""
    return canonical_name(spec.target) if isinstance(spec.target, str) else name_of(spec.target)
