"""What a world returns is refused where its spaces do not allow it, with the slot, the key and the value."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from gymnasium import spaces

import stretto
from tests.backends import OPTIONS, every_backend, here_and_elsewhere
from tests.worlds import Crowd, Drift, Returns, makes

BOX = spaces.Box(-10, 10, (2,), np.float32)
BYTES = spaces.Box(0, 255, (2,), np.uint8)

# What the world returns, and the words that the refusal must have.
REFUSED = {
    "another shape": ({"observation": np.zeros(3)}, r"observation must have shape \(2,\).*shape \(3,\)"),
    "a shape that would broadcast": ({"observation": np.zeros(1)}, r"must have shape \(2,\), got \[0.\]"),
    "a number that would broadcast": ({"observation": 0.5}, r"must have shape \(2,\), got 0.5"),
    "one more dimension": ({"observation": np.zeros((1, 2))}, r"must have shape \(2,\)"),
    "a ragged list": ({"observation": [1.0, [2.0]]}, "must be an array"),
    "nothing": ({"observation": None}, "must be numbers of type float32, got None"),
    "text": ({"observation": "ab"}, "must be numbers of type float32"),
    "complex numbers": ({"observation": np.zeros(2, complex)}, "must be numbers of type float32"),
    "NaN": ({"observation": np.array([0.0, np.nan])}, "must not be NaN"),
    "too large for the type": ({"observation": np.array([0.0, 1e300])}, "must fit into float32"),
    "real numbers for bytes": ({"space": BYTES, "observation": np.array([0.5, 1.0])}, "must be of type uint8"),
    "too large for bytes": ({"space": BYTES, "observation": np.array([0, 256])}, "must fit into uint8"),
    "negative for bytes": ({"space": BYTES, "observation": np.array([0, -1])}, "must fit into uint8"),
    "no reward": ({"reward": None}, "a reward must be one real number, got None"),
    "several rewards": ({"reward": np.zeros(1)}, r"a reward must be one real number, got \[0.\]"),
    "a reward in words": ({"reward": "much"}, "a reward must be one real number, got 'much'"),
    "a flag that is none": ({"terminated": None}, "terminated must be True or False, got None"),
    "several flags": ({"terminated": np.zeros(2, bool)}, "terminated must be True or False"),
    "four values": ({"result": (np.zeros(2), 0.0, False, {})}, "step must return five values"),
}

ACCEPTED = {
    "float64 for float32": {"observation": np.array([0.1, 0.2])},
    "float16 for float32": {"observation": np.array([0.5, 1.5], np.float16)},
    "integers for real numbers": {"observation": np.array([1, 2])},
    "a list": {"observation": [1.0, 2.0]},
    "int64 that fits bytes": {"space": BYTES, "observation": np.array([0, 255])},
    "truth values for bytes": {"space": BYTES, "observation": np.array([True, False])},
    "an integer reward": {"reward": 3},
    "a reward of one numpy number": {"reward": np.float32(0.5)},
    "a truth value as reward": {"reward": True},
    "numpy's truth values": {"terminated": np.True_},
    "a number as flag": {"terminated": 1},
}


@here_and_elsewhere
@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_with_slot_rule_and_value(case, options):
    instead, words = REFUSED[case]
    space = {"space": instead["space"]} if "space" in instead else {}
    with stretto.make_vec([makes(Returns, 99, **space), makes(Returns, 3, **instead)], 2, **options) as envs:
        envs.reset(seed=5)
        for _ in range(2):
            envs.step([0, 0])
        with pytest.raises(stretto.InvalidOutput, match=words) as refused:
            envs.step([0, 0])
        assert (refused.value.place.slot, refused.value.place.step) == (1, 3)
        assert refused.value.place.seed == 6
        with pytest.raises(stretto.ResetNeeded):
            envs.step([0, 0])
        envs.reset(seed=5)
        envs.step([0, 0])


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_keeps_its_value_passes(case):
    with stretto.make_vec(makes(Returns, 1, **ACCEPTED[case]), 2, backend="serial", checks="always") as envs:
        envs.reset(seed=0)
        result = envs.step([0, 0])
        if "observation" in ACCEPTED[case]:
            wanted = np.asarray(ACCEPTED[case]["observation"], envs.single_observation_space.dtype)
            assert np.array_equal(result.observations[1], wanted)
        assert result.rewards.dtype == np.float64


@pytest.mark.parametrize("value", [1e6, np.inf])
def test_bounds_are_left_to_the_world_unless_all_is_checked(value):
    with stretto.make_vec(makes(Returns, 1, observation=np.array([value, 0])), 2, backend="serial") as envs:
        envs.reset(seed=0)
        assert envs.step([0, 0]).observations[1, 0] == value


@every_backend
def test_what_a_reset_returns_is_checked_too(options):
    with (
        stretto.make_vec(makes(Returns, 0, observation=np.zeros(5)), 2, **options) as envs,
        pytest.raises(stretto.InvalidOutput, match=r"shape \(2,\).*while resetting \(slot 0"),
    ):
        envs.reset(seed=0)


@here_and_elsewhere
def test_the_part_of_a_dict_is_named(options):
    space = spaces.Dict({"eye": BOX, "ear": spaces.Tuple([BOX, spaces.Discrete(3)])})
    for observation, words in (
        ({"eye": np.zeros(2), "ear": (np.zeros(2), 0.5)}, r"observation\['ear'\]\[1\] must be of type int64"),
        ({"eye": np.zeros(2)}, r"observation\['ear'\]\[0\] is missing"),
        ({"eye": np.zeros(2), "ear": (np.zeros(2),)}, r"observation\['ear'\]\[1\] is missing"),
        (np.zeros(2), r"observation\['ear'\]\[0\] is missing"),
    ):
        world = makes(ReturnsParts, 1, space=space, observation=observation)
        with stretto.make_vec(world, 2, **options) as envs:
            envs.reset(seed=0)
            with pytest.raises(stretto.InvalidOutput, match=words):
                envs.step([0, 0])


class ReturnsParts(Returns):
    def see(self):
        return {"eye": np.zeros(2, np.float32), "ear": (np.zeros(2, np.float32), 0)}


def play(envs, steps):
    envs.reset(seed=0)
    for _ in range(steps):
        envs.step([0, 0])


@here_and_elsewhere
def test_first_looks_at_the_first_steps_always_at_all_and_off_at_none(options):
    def play_until(at_step, checks):
        world = makes(Returns, at_step, observation=np.array([0.0, np.nan]))
        with stretto.make_vec(world, 2, checks=checks, **options) as envs:
            play(envs, at_step)

    with pytest.raises(stretto.InvalidOutput):
        play_until(8, "first")
    play_until(9, "first")
    with pytest.raises(stretto.InvalidOutput):
        play_until(40, "always")
    play_until(1, "off")


IMAGE = spaces.Box(0, 255, (2, 3), np.uint8)
PAIR = spaces.Dict({"eye": IMAGE, "ear": BOX})

# The space, and what numpy would repeat until it fits.
REPEATED = {
    "a number for a row": (BOX, 0.5),
    "a row of one": (BOX, np.zeros(1, np.float32)),
    "a list of one": (BOX, [0.5]),
    "a number for an image": (IMAGE, 7),
    "a row for an image": (IMAGE, np.zeros(3, np.uint8)),
    "a column for an image": (IMAGE, np.zeros((2, 1), np.uint8)),
    "a part of a dict": (PAIR, {"eye": np.zeros((2, 1), np.uint8), "ear": np.zeros(2, np.float32)}),
    "a number as a part of a dict": (PAIR, {"eye": np.zeros((2, 3), np.uint8), "ear": 0.5}),
}


class ReturnsAPair(Returns):
    def see(self):
        if not isinstance(self.observation_space, spaces.Dict):
            return super().see()
        return {"eye": np.zeros((2, 3), np.uint8), "ear": np.zeros(2, np.float32)}


@here_and_elsewhere
@pytest.mark.parametrize("checks", ["first", "off"])
@pytest.mark.parametrize("case", REPEATED)
def test_a_shape_that_numpy_would_repeat_is_refused_at_any_time(case, checks, options):
    space, observation = REPEATED[case]
    worlds = [makes(ReturnsAPair, 99, space=space), makes(ReturnsAPair, 20, space=space, observation=observation)]
    with stretto.make_vec(worlds, 2, checks=checks, **options) as envs:
        play(envs, 19)
        with pytest.raises(stretto.InvalidOutput, match="must have shape") as refused:
            envs.step([0, 0])
        assert (refused.value.place.slot, refused.value.place.step) == (1, 20)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_shape_that_numpy_would_repeat_is_refused_from_a_reset_too(mode):
    with (
        stretto.make_vec(ShrinksAtReset, 2, backend="serial", autoreset_mode=mode, checks="off") as envs,
        pytest.raises(stretto.InvalidOutput, match=r"must have shape \(2,\)"),
    ):
        play(envs, 4)


class ShrinksAtReset(Returns):
    """Its second reset returns one number."""

    resets_done = 0

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        self.resets_done += 1
        return (0.5 if self.resets_done > 1 else observation), info

    def move(self, action):
        return self.see(), 0.0, self.steps == 2, False, {}


# The space, what is outside of it, and the words that the refusal must have.
OUTSIDE = {
    "above a box": ({"observation": np.array([0, 11], np.float32)}, "within the bounds of Box"),
    "below a box": ({"observation": np.array([-10.5, 0])}, "within the bounds of Box"),
    "infinity": ({"observation": np.array([np.inf, 0.0])}, "within the bounds of Box"),
    "no choice": ({"space": spaces.Discrete(3), "observation": 3}, r"within the bounds of Discrete\(3\)"),
    "no choice of several": ({"space": spaces.MultiDiscrete([2, 2]), "observation": np.array([0, 2])}, "MultiDiscrete"),
    "no bit": ({"space": spaces.MultiBinary(2), "observation": np.array([0, 2])}, "MultiBinary"),
    "a reward that is no number": ({"reward": float("nan")}, "a reward must be a number, got nan"),
}


@here_and_elsewhere
@pytest.mark.parametrize("case", OUTSIDE)
def test_always_refuses_what_is_out_of_bounds_with_slot_and_step(case, options):
    instead, words = OUTSIDE[case]
    space = {"space": instead["space"]} if "space" in instead else {}
    worlds = [makes(Returns, 99, **space), makes(Returns, 20, **instead)]
    with stretto.make_vec(worlds, 2, checks="always", **options) as envs:
        play(envs, 19)
        with pytest.raises(stretto.InvalidOutput, match=words) as refused:
            envs.step([0, 0])
        assert (refused.value.place.slot, refused.value.place.step) == (1, 20)


@pytest.mark.parametrize(
    ("what", "value", "words"),
    [
        (0, {"observation": np.full(2, 2e6, np.float32), "action_mask": np.zeros(3, np.int8)}, "within the bounds of"),
        (1, float("nan"), "must have a number as reward"),
    ],
    ids=["out of bounds", "no number"],
)
def test_always_looks_at_what_each_agent_gets(what, value, words):
    from stretto.testing import sample_actions

    with stretto.make_vec(lambda: BadCrowd(what, value), 2, backend="serial", checks="always") as envs:
        actions = sample_actions(envs, 2)
        envs.reset(seed=1)  # when not all agents are there
        envs.step(actions[0])
        with pytest.raises(stretto.InvalidOutput, match=f"mouse_1.*{words}"):
            envs.step(actions[1])


@here_and_elsewhere
@pytest.mark.parametrize("checks", ["first", "always", "off"])
def test_a_missing_reward_is_refused_at_any_time(checks, options):
    with stretto.make_vec([makes(Returns, 99), makes(Returns, 20, reward=None)], 2, checks=checks, **options) as envs:
        envs.reset(seed=0)
        for _ in range(19):
            envs.step([0, 0])
        with pytest.raises(stretto.InvalidOutput, match="a reward must be one real number, got None") as refused:
            envs.step([0, 0])
        assert refused.value.place.slot == 1


@here_and_elsewhere
def test_an_end_that_is_an_array_is_refused_at_any_time(options):
    ends = {"terminated": np.array([True, False])}
    with stretto.make_vec([makes(Returns, 99), makes(Returns, 20, **ends)], 2, **options) as envs:
        envs.reset(seed=0)
        for _ in range(19):
            envs.step([0, 0])
        with pytest.raises(stretto.InvalidOutput, match="terminated must be True or False, got ") as refused:
            envs.step([0, 0])
        assert (refused.value.place.slot, refused.value.place.step) == (1, 20)
    record = stretto.evaluate(makes(Returns, 20, **ends), "random", episodes=1, jobs=0).records[0]
    assert (record.failure.kind, record.failure.step) == ("InvalidOutput", 20)
    assert "must have one truth value as terminated" in record.failure.message


def test_what_a_value_is_stands_in_the_message_however_long_the_value_is():
    long = np.arange(3 * 4 * 5 * 6, dtype=np.float64).reshape(3, 4, 5, 6)
    with (
        stretto.make_vec(makes(Returns, 1, observation=long), 1, backend="serial") as envs,
        pytest.raises(stretto.InvalidOutput, match=r"\(shape \(3, 4, 5, 6\), float64\)"),
    ):
        envs.reset(seed=0)
        envs.step([0])


@here_and_elsewhere
@pytest.mark.parametrize(
    ("space", "checks"),
    [(BOX, "first"), (BOX, "off"), (spaces.Discrete(3), "first")],
    ids=["real numbers", "real numbers, unchecked", "a choice"],
)
def test_a_missing_observation_is_refused_at_any_time(space, checks, options):
    world = [makes(Returns, 99, space=space), makes(Returns, 20, space=space, observation=None)]
    with stretto.make_vec(world, 2, checks=checks, **options) as envs:
        envs.reset(seed=0)
        for _ in range(19):
            envs.step([0, 0])
        with pytest.raises(stretto.InvalidOutput, match=r"observation must be .*, got None") as refused:
            envs.step([0, 0])
        assert (refused.value.place.slot, refused.value.place.step) == (1, 20)


@every_backend
def test_a_missing_part_of_one_is_refused_at_any_time_with_its_name(options):
    space = spaces.Dict({"eye": BOX, "ear": spaces.Tuple([BOX, spaces.Discrete(3)])})
    observation = {"eye": np.zeros(2), "ear": (None, 0)}
    world = [makes(ReturnsParts, 99, space=space), makes(ReturnsParts, 12, space=space, observation=observation)]
    with stretto.make_vec(world, 2, **options) as envs:
        envs.reset(seed=0)
        for _ in range(11):
            envs.step([0, 0])
        with pytest.raises(stretto.InvalidOutput, match=r"observation\['ear'\]\[0\] must be numbers") as refused:
            envs.step([0, 0])
        assert refused.value.place.slot == 1


@pytest.mark.parametrize("checks", ["first", "off"])
def test_a_reset_that_returns_no_observation_is_refused_even_where_nothing_is_checked(checks):
    with (
        stretto.make_vec(makes(Returns, 0, observation=None), 2, backend="serial", checks=checks) as envs,
        pytest.raises(stretto.InvalidOutput, match=r"got None.*while resetting \(slot 0"),
    ):
        envs.reset(seed=0)


class HoldsALock(Drift):
    """From step `at_step` on (0: at reset) its info holds what no pickle can."""

    def __init__(self, at_step):
        super().__init__(1000)
        self.at_step = at_step
        self.lock = threading.Lock()

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed, options=options)
        return observation, self.info()

    def move(self, action):
        return *super().move(action)[:4], self.info()

    def get(self, name):
        return getattr(self, name)

    def info(self):
        return {"fine": "text", "kept": {"by": [self.lock]}} if self.steps >= self.at_step else {"fine": "text"}


@pytest.mark.parametrize("at_step", [0, 2])
@pytest.mark.parametrize("name", ["process", "process-isolated", "process-message"])
def test_an_info_that_cannot_be_pickled_is_refused_with_slot_and_key(name, at_step):
    # Slots 0 and 1 share a worker; the fault is not with the one that comes last.
    with stretto.make_vec([makes(HoldsALock, step) for step in (at_step, 99, 99, 99)], 4, **OPTIONS[name]) as envs:

        def play():
            envs.reset(seed=5)
            for _ in range(2):
                envs.step([0, 0, 0, 0])

        words = r"info\['kept'\]\['by'\]\[0\] of slot 0 is not: TypeError: cannot pickle '_thread.lock' object; leave it out"
        with pytest.raises(stretto.InvalidOutput, match=words) as refused:
            play()
        assert (refused.value.place.slot, refused.value.place.seed) == (0, 5)


@pytest.mark.parametrize("name", ["process", "process-isolated", "process-message"])
def test_an_answer_that_cannot_be_pickled_says_whose_it_is(name):
    with stretto.make_vec([makes(HoldsALock, 99), *[makes(Drift)] * 3], 4, **OPTIONS[name]) as envs:
        for ask in (
            lambda: envs.map(lambda env: getattr(env, "lock", None)),
            lambda: envs.call_some([0], "get", "lock"),
        ):
            with pytest.raises(TypeError, match="cannot pickle '_thread") as failed:
                ask()
            assert failed.value.place.slot == 0
        assert envs.map(lambda env: env.steps) == (0, 0, 0, 0)


@pytest.mark.parametrize("name", ["serial", "thread"])
def test_within_one_process_it_comes_through(name):
    with stretto.make_vec(makes(HoldsALock, 0), 2, **OPTIONS[name]) as envs:
        envs.reset(seed=5)
        infos = envs.step([0, 0])[4]
        assert infos["kept"]["by"][1][0] is envs.get_attr("lock")[1]


class BadCrowd(Crowd):
    """Returns nonsense for one agent at its second step."""

    def __init__(self, what, value):
        super().__init__()
        self.what, self.value = what, value

    def step(self, actions):
        results = super().step(actions)
        if self.steps == 2:
            results[self.what]["mouse_1"] = self.value
        return results


@pytest.mark.parametrize(
    ("what", "value"),
    [(0, {"observation": np.zeros(1), "action_mask": np.zeros(3)}), (0, None), (1, None), (1, np.zeros(2))],
    ids=["broadcast", "no observation", "no reward", "several rewards"],
)
@here_and_elsewhere
def test_what_an_agent_returns_is_refused_with_the_slot_and_the_agent(what, value, options):
    from stretto.testing import sample_actions

    with stretto.make_vec(lambda: BadCrowd(what, value), 2, **options) as envs:
        actions = sample_actions(envs, 2)
        envs.reset(seed=1)
        envs.step(actions[0])
        with pytest.raises(stretto.InvalidOutput, match="mouse_1") as refused:
            envs.step(actions[1])
        assert refused.value.place.slot == 0
