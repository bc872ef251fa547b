"""PolicyPlan: what the plan of a run fixes about one policy, and how that policy is loaded in any process."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

from stretto.core import MultiAgentPolicy, WorldSpec
from stretto.identity.names import canonical_name, name_of
from stretto.policies.loading import load_policy
from stretto.policies.spec import PolicySpec
from stretto.seeding.generators import PrivateGenerators
from stretto.seeding.streams import SeedTree

__calls_user_code__ = True


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """What the plan fixes about one policy: which global generators it draws from, and the rows of its batches.

    `draws` is `None` where that has to be found out. `rows` does not matter where the policy has no `step_batch`; nor do the
    planned rows of agents where they are `interchangeable`; `batches` says whether it was seen to act for many agents in one
    call. `in_order` says why its agents cannot be asked before it is their turn, where that was asked for. `seed` is for
    what it draws while it is loaded, such as weights: it is loaded in several processes, and must be the same in each.
    `blocks`: its agents are asked by blocks, which
    one process computes as a whole. In whichever process, it computes with `native_threads`: their number can change the
    last bits.
    """

    spec: PolicySpec
    draws: frozenset[str] | None = frozenset()
    rows: int = 0
    seed: int = 0
    blocks: bool = False
    native_threads: int = 1
    interchangeable: bool = False
    batches: bool = False
    in_order: str = ""

    def load(self, world: WorldSpec) -> MultiAgentPolicy:
        """Build the policy; it may draw from the spaces in `world`, which therefore must be nobody else's."""
        tree = SeedTree(self.seed).child("load", _loading_name(self.spec))
        return PrivateGenerators(tree, probation=1 << 62).run_repeatable(load_policy, self.spec, world)


def _loading_name(spec: PolicySpec) -> str:
    """Return the name that keys what a policy draws while it is loaded: the same in every process, for every label."""
    return canonical_name(spec.target) if isinstance(spec.target, str) else name_of(spec.target)


def own_spaces(world: WorldSpec) -> WorldSpec:
    """Return a world's description whose spaces, with their generators, belong to whoever gets it, one for each agent."""
    return replace(
        world,
        observation_spaces={agent: copy.deepcopy(space) for agent, space in world.observation_spaces.items()},
        action_spaces={agent: copy.deepcopy(space) for agent, space in world.action_spaces.items()},
    )
