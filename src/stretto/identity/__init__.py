"""What code, weights and an installation are, by digest and version, so that a score can say what produced it."""

from stretto.identity.installation import installation
from stretto.identity.record import Record, canonical_name, differences, identify, name_of, plain_settings
from stretto.identity.source import find_module

__all__ = [
    "Record",
    "canonical_name",
    "differences",
    "find_module",
    "identify",
    "installation",
    "name_of",
    "plain_settings",
]
