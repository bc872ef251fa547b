"""What a policy is made of."""

from __future__ import annotations

from stretto.identity.record import Record, identify
from stretto.policies.spec import PolicySpec


def identify_policy(spec: PolicySpec) -> Record:
    """Return the code, the weights and the settings of a policy; where it runs does not count."""
    settings = {f"kw.{name}": value for name, value in spec.kwargs.items()}
    if spec.proportion != 1.0:
        settings["proportion"] = spec.proportion
    return identify(spec.target, settings, spec.data)
