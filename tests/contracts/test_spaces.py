"""Every sort of space: what has no fixed size travels beside the arrays."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import stretto
from stretto.testing import check_equals_gymnasium, check_same, play, sample_actions
from tests.backends import every_backend
from tests.worlds import Crowd, Echo, Incomparable, Words, makes

BOX = spaces.Box(-1, 1, (2, 3), np.float32)


SPACES = {
    "Discrete": spaces.Discrete(5, start=-2),
    "Discrete-small-type": spaces.Discrete(5, dtype=np.int32),
    "MultiDiscrete": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]),
    "MultiBinary": spaces.MultiBinary((2, 2)),
    "Box": BOX,
    "Box-scalar": spaces.Box(-1, 1, (), np.float64),
    "Box-of-bytes": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "Box-empty": spaces.Box(-1, 1, (0,), np.float32),
    "Dict": spaces.Dict({"b": BOX, "a": spaces.Discrete(3)}),
    "Tuple": spaces.Tuple([spaces.Discrete(3), BOX]),
    "nested": spaces.Dict({"outer": spaces.Tuple([spaces.Dict({"inner": BOX}), spaces.MultiBinary(3)])}),
    "Text": spaces.Text(12),
    "Graph": spaces.Graph(spaces.Box(-1, 1, (3,)), spaces.Discrete(4)),
    "Sequence": spaces.Sequence(spaces.Discrete(9)),
    "Sequence-stacked": spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True),
    "OneOf": spaces.OneOf([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
    "custom": Words(),
    "Dict-with-loose-parts": spaces.Dict({"words": spaces.Text(8), "box": BOX, "own": Words()}),
    "Tuple-with-loose-parts": spaces.Tuple([spaces.Text(8), spaces.Discrete(4), spaces.Sequence(BOX)]),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_observations_and_actions_of_every_space_come_through_as_gymnasium_has_them(space):
    check_equals_gymnasium(makes(Echo, space), 3, steps=14, backend="process", workers=2)


@every_backend
@pytest.mark.parametrize("name", ["Dict", "Dict-with-loose-parts", "Graph", "custom"])
def test_they_come_through_on_every_backend_and_in_every_mode(name, options):
    for mode in AutoresetMode:
        check_equals_gymnasium(makes(Echo, SPACES[name]), 3, steps=14, autoreset_mode=mode, **options)


@every_backend
@pytest.mark.parametrize("name", ["Tuple", "Text", "Dict-with-loose-parts"])
def test_they_can_be_sent_and_received(name, options):
    with stretto.make_vec(makes(Echo, SPACES[name], length=50), 3, **options) as envs:
        actions = sample_actions(envs, 5)
        expected = play(envs, actions, 4)
        envs.reset(seed=4)
        for number, action in enumerate(actions, start=1):
            envs.send(action)
            check_same(tuple(envs.recv(ordered=True)[:5]), expected.moments[number][:5], f"step {number}")


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_an_action_belongs_to_the_world_that_it_was_given_to(space):
    # In the caller's own process the two could be the same object.
    with stretto.make_vec(makes(Echo, space, length=50), 2, backend="serial") as envs:
        envs.reset(seed=0)
        actions = sample_actions(envs, 1)[0]
        shown = copy.deepcopy(envs.step(actions).observations)
        overwrite(actions)
        check_same(envs.step(sample_actions(envs, 1)[0]).observations, shown, "what the same action shows")


def overwrite(actions):
    if isinstance(actions, np.ndarray) and actions.dtype.kind in "fiu":
        actions[...] = 77
    for part in actions.values() if isinstance(actions, dict) else actions if isinstance(actions, tuple) else ():
        overwrite(part)


@every_backend
def test_worlds_whose_spaces_differ_are_refused_with_the_slot(options):
    with pytest.raises(stretto.InvalidSpace, match=r"same observation_space.*slot 2"):
        stretto.make_vec([makes(Echo, spaces.Discrete(n)) for n in (3, 3, 4)], 3, **options)


@every_backend
def test_a_box_within_other_bounds_is_another_space(options):
    with pytest.raises(stretto.InvalidSpace):
        stretto.make_vec([makes(Echo, spaces.Box(-1, high)) for high in (1, 2)], 2, **options)


@every_backend
def test_a_space_that_cannot_be_compared_works_all_the_same(options):
    with stretto.make_vec(makes(Echo, Incomparable()), 3, **options) as envs:
        assert isinstance(envs.observation_space, spaces.Tuple)
        run = play(envs, sample_actions(envs, 9), 0)
        assert all(envs.observation_space.contains(moment[0]) for moment in run.moments)


class Talkers(Crowd):
    """Agents that say words: neither what they see nor what they do has a fixed size."""

    def observation_space(self, agent):
        return spaces.Dict({"heard": spaces.Text(20), "number": spaces.Discrete(9)})

    def action_space(self, agent):
        return spaces.Text(5) if agent.startswith("lion") else spaces.Tuple([spaces.Text(5), spaces.Discrete(3)])

    def step(self, actions):
        self.said = {agent: action if isinstance(action, str) else action[0] for agent, action in actions.items()}
        return super().step(dict.fromkeys(actions, 1))

    def _see(self, agent):
        return {"heard": getattr(self, "said", {}).get(agent, "nothing"), "number": int(self.np_random.integers(9))}


@every_backend
def test_several_agents_may_have_spaces_without_a_layout_too(options):
    with stretto.make_vec(Talkers, 3, backend="serial") as envs:
        actions = sample_actions(envs, 30)
        expected = play(envs, actions, 1)
    assert expected.moments[1][0]["lion_0"]["heard"] == actions[0]["lion_0"]
    assert expected.moments[1][0]["mouse_0"]["heard"] == actions[0]["mouse_0"][0]
    with stretto.make_vec(Talkers, 3, **options) as envs:
        play(envs, actions, 1).check_same(expected, "this backend and the serial one")
        with pytest.raises(stretto.InvalidAction, match="slot 1"):
            envs.step({**actions[0], "lion_0": ("a", 5, "b")})
