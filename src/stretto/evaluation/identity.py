"""What an evaluation is made of: its missions, its policies and this installation; and what changed when it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stretto.evaluation.plan import Plan
from stretto.identity import Record, differences, installation
from stretto.missions.identity import identify_mission
from stretto.policies.identity import identify_policy

IDENTITY, CHANGES = "identity", "accepted_changes"
"""Keys of a plan's description: what everything is, and what was something else when earlier episodes were played."""


def identify_plan(plan: Plan) -> dict[str, Any]:
    """Return what everything is that a plan's results depend on, in plain values."""
    policies: dict[str, Record] = {}
    for spec in (spec for entry in plan.entries for spec in entry.specs):
        record, name, count = identify_policy(spec), spec.name, 1
        while policies.setdefault(name, record) != record:  # functions of one name in a mix
            count += 1
            name = f"{spec.name} ({count})"
    return {
        "missions": {mission.name: identify_mission(mission) for mission in plan.missions},
        "policies": policies,
        "installation": installation(),
    }


def changes_since(begun: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield, in words, what is something else now than in the identity that an evaluation was begun with."""
    if not begun:
        yield "what it was begun with is not on record"
        return
    for part, whose in (("missions", "the mission "), ("policies", "the policy ")):
        for name in now[part]:
            for change in differences(begun.get(part, {}).get(name, {}), now[part][name]):
                yield f"of {whose}{name}, {change}"
    yield from differences({"installation": begun.get("installation", {})}, {"installation": now["installation"]})


def identity_rows(plan: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield, for a table, what a plan's description says of its identity: whose, what of it, and which one it is."""
    identity = plan.get(IDENTITY, {})
    for part, whose in (("missions", "mission"), ("policies", "policy")):
        for name, record in identity.get(part, {}).items():
            for what, value in record.items():
                for key, text in value.items() if isinstance(value, Mapping) else [("", value)]:
                    yield f"{whose} {name}", f"{what.removesuffix('s')} {key}".strip(), str(text)
    for name, version in identity.get("installation", {}).items():
        yield "installation", name, version


def changes_told(plan: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each time that a plan was gone on with although something had changed."""
    return [
        f"after {one['episodes']} episodes it went on with changes: {'; '.join(one['changes'])}"
        for one in plan.get(CHANGES, [])
    ]
