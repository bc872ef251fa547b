"""The rules of Netdefense one by one, and that a defender who follows them does better than one who sleeps."""

from __future__ import annotations

from itertools import cycle

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import stretto
from stretto.games import netdefense
from stretto.games.netdefense import ACTIONS, HOSTS, ROOT, USER, Deed, Netdefense

every_red = pytest.mark.parametrize("red", ["b_line", "meander"])
some_backends = pytest.mark.parametrize("backend", ["serial", "process"])


@pytest.fixture
def play(monkeypatch):
    """Begin an episode in which the attacker does what is written, and nobody cries wolf."""
    monkeypatch.setattr(netdefense, "FALSE_ALARM_CHANCE", 0.0)

    def begin(*deeds, **levels):
        script = iter([(deed, HOSTS.index(host)) for deed, host in deeds])
        monkeypatch.setitem(netdefense.REDS, "scripted", lambda network, rng: next(script, (Deed.WAIT, 0)))
        env = Netdefense(red="scripted")
        env.reset(seed=0)
        for host, level in levels.items():
            env._network.levels[HOSTS.index(host)] = level
        return env

    return begin


def do(env, action="wait"):
    """Take an action by its name, and return the four bits of every host, and the reward."""
    observation, reward, *_ = env.step(ACTIONS.index(action))
    bits = ["".join(map(str, host)) for host in observation.reshape(13, 4)]
    return dict(zip(HOSTS, bits, strict=True)), reward


def level(env, host):
    return env.true_state()["levels"][HOSTS.index(host)]


def episode(env, choose, seed):
    """Return the sum of the rewards, and the deeds of the attacker with their targets."""
    observation, _ = env.reset(seed=seed)
    total, deeds, over = 0.0, [], False
    while not over:
        observation, reward, _, over, _ = env.step(choose(observation))
        total += reward
        deed, _, target = env.true_state()["attacker"]
        deeds.append((deed, target))
    return total, deeds


def waits(observation):
    return 0


class Watchful:
    """Throws out what it sees come in, looks closer where it suspects something, and goes its rounds otherwise."""

    def __init__(self):
        self.rounds = cycle(("ops_server", *HOSTS[:10]))

    def __call__(self, observation):
        hosts = [(name, bits.tolist()) for name, bits in zip(HOSTS, observation.reshape(13, 4), strict=True)][::-1]
        for kind, wanted in (("restore", [1, 1]), ("remove", [1, 0])):
            for name, (_, _, *belief) in hosts:
                if belief == wanted:
                    return ACTIONS.index(f"{kind} {name}")
        for name, (_, attacked, *_) in hosts:
            if attacked:
                return ACTIONS.index(f"remove {name}")
        for name, (_, _, *belief) in hosts:
            if belief == [0, 1]:
                return ACTIONS.index(f"analyse {name}")
        return ACTIONS.index(f"analyse {next(self.rounds)}")


# ---- what it is ----


def test_there_are_thirteen_hosts_with_four_bits_each_and_145_actions_with_names_of_their_own():
    env = Netdefense()
    assert env.observation_space == gymnasium.spaces.MultiBinary(52)
    assert env.action_space == gymnasium.spaces.Discrete(145)
    assert len(HOSTS) == len(netdefense.VALUES) == 13
    assert [host for subnet in netdefense.SUBNETS for host in subnet] == list(range(13))
    assert len(netdefense.KINDS) == 11
    assert len(set(env.action_names)) == 145


@every_red
@pytest.mark.parametrize("render_mode", [None, "rgb_array", "ansi"])
def test_gymnasium_finds_nothing_wrong_with_it(red, render_mode):
    spec = EnvSpec("Netdefense-v0", entry_point=Netdefense, kwargs={"red": red})
    check_env(gymnasium.make(spec, render_mode=render_mode).unwrapped)


@every_red
def test_an_episode_is_a_function_of_the_seed_and_the_actions(red):
    def rows(seed):
        env = Netdefense(red=red)
        observation, _ = env.reset(seed=seed)
        found = [observation.tolist()]
        for action in np.random.default_rng(5).integers(145, size=100):
            observation, reward, *_ = env.step(action)
            found.append((observation.tolist(), reward, env.true_state()))
        return found

    assert rows(3) == rows(3)
    assert rows(3) != rows(4)


@pytest.mark.parametrize(
    "kwargs", [mission["kwargs"] for mission in netdefense.MISSIONS.values()] + list(netdefense.VARIANTS.values())
)
def test_missions_and_variants_can_be_built_and_last_as_long_as_they_say(kwargs):
    env = Netdefense(**kwargs)
    _, deeds = episode(env, waits, seed=0)
    assert len(deeds) == env.max_steps == kwargs.get("max_steps", 100)


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"red": "blue"}, "red must be one of 'b_line', 'meander', got 'blue'"),
        ({"max_steps": 0}, "max_steps must be a whole number of at least 1, got 0"),
        ({"max_steps": 2.5}, "got 2.5"),
        ({"render_mode": "human"}, "render_mode must be None or one of 'rgb_array', 'ansi', got 'human'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(wrong, rule):
    with pytest.raises(stretto.UsageError, match=rule):
        Netdefense(**wrong)


def test_an_action_that_is_none_and_a_step_without_an_episode_are_refused():
    env = Netdefense(max_steps=1)
    with pytest.raises(stretto.ResetNeeded, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    for action in (-1, 145):
        with pytest.raises(stretto.InvalidAction, match=f"from 0 to 144, got {action}"):
            env.step(action)
    assert env.step(144)[2:4] == (False, True)
    with pytest.raises(stretto.ResetNeeded, match="call reset"):
        env.step(0)


# ---- what the defender does ----


def test_analyse_shows_what_the_attacker_has(play):
    env = play(user1=USER, server2=ROOT)
    assert do(env, "analyse user1")[0]["user1"] == "0010"
    assert do(env, "analyse server2")[0]["server2"] == "0011"
    bits, _ = do(env, "analyse ops0")
    assert (bits["ops0"], bits["user1"], bits["server2"]) == ("0000", "0010", "0011")


def test_remove_ends_user_access_and_leaves_root_and_does_not_tell_which_it_was(play):
    env = play(user1=USER, user2=ROOT, user3=USER, user4=ROOT)
    do(env, "analyse user1")
    do(env, "analyse user2")
    for host in ("user1", "user2", "user3", "user4"):
        bits, _ = do(env, f"remove {host}")
    assert [level(env, host) for host in ("user1", "user2", "user3", "user4")] == [0, ROOT, 0, ROOT]
    assert bits["user1"] == "0001"
    assert bits["user2"] == "0011"
    assert bits["user3"] == bits["user4"] == "0000"


def test_restore_cleans_a_host_altogether_and_costs_one(play):
    env = play((Deed.SCAN, "user1"), user1=ROOT)
    do(env, "decoy_ssh user1")
    do(env, "harden user1")
    do(env, "analyse user1")
    bits, reward = do(env, "restore user1")
    assert (bits["user1"], reward) == ("0000", -1.0)
    state, index = env.true_state(), HOSTS.index("user1")
    assert [state[name][index] for name in ("levels", "hardened", "scanned", "decoys")] == [0, 0, False, ()]


@every_red
def test_nothing_reaches_an_isolated_host_for_four_steps(red):
    env = Netdefense(red=red)
    env.reset(seed=0)
    env._network.levels[HOSTS.index("ops_server")] = ROOT
    env.step(ACTIONS.index("isolate ops_server"))
    for _ in range(3):
        env.step(0)
    assert env.statistics()["impacts"] == 0
    env.step(0)
    assert env.statistics()["impacts"] == 1


def test_nothing_comes_from_an_isolated_host(play):
    env = play(server2=ROOT)
    assert [env._network.source_for(subnet) for subnet in (1, 2)] == [7, 7]
    do(env, "isolate server2")
    assert [env._network.source_for(subnet) for subnet in (1, 2)] == [netdefense.NOWHERE] * 2
    assert env._network.source_for(0) == netdefense.OUTSIDE


def test_an_isolated_host_costs_three_times_its_value_in_each_of_the_four_steps(play):
    env = play()
    rewards = [do(env, "isolate server1")[1], *(do(env)[1] for _ in range(4))]
    assert rewards == pytest.approx([-1.5, -1.5, -1.5, -1.5, 0])


def test_a_hardened_host_is_taken_half_as_often_for_ten_steps(play):
    def share_taken(*preparations):
        taken = 0
        for seed in range(300):
            env = play(*[(Deed.WAIT, "user0")] * len(preparations), (Deed.EXPLOIT, "user0"))
            env.reset(seed=seed)
            for action in preparations:
                do(env, action)
            do(env)
            taken += level(env, "user0") == USER
        return taken / 300

    assert share_taken() == pytest.approx(0.8, abs=0.08)
    assert share_taken("harden user0") == pytest.approx(0.4, abs=0.08)
    assert share_taken("harden user0", *["wait"] * 8) == pytest.approx(0.4, abs=0.08)
    assert share_taken("harden user0", *["wait"] * 9) == pytest.approx(0.8, abs=0.08)


def test_a_decoy_that_is_attacked_fails_and_is_seen_and_is_used_up(play):
    hits = 0
    for seed in range(60):
        env = play((Deed.WAIT, "ops0"), (Deed.EXPLOIT, "ops0"))
        env.reset(seed=seed)
        do(env, "decoy_web ops0")
        bits, _ = do(env)
        if not env.true_state()["decoys"][HOSTS.index("ops0")]:
            hits += 1
            assert (level(env, "ops0"), bits["ops0"]) == (0, "0101")
            assert env.statistics()["decoys_hit"] == 1
    assert 15 < hits < 45  # one service of two


def test_a_decoy_of_a_service_that_is_there_has_no_effect(play):
    env = play()
    do(env, "decoy_ssh server0")
    do(env, "decoy_mail server0")
    do(env, "decoy_mail server0")
    assert env.true_state()["decoys"][HOSTS.index("server0")] == ("mail",)
    assert env.statistics()["decoys_placed"] == 1


# ---- what the defender sees ----


def test_one_who_monitors_sees_all_and_even_escalations(play):
    for seed in range(20):
        env = play((Deed.SCAN, "user0"), (Deed.EXPLOIT, "user1"), (Deed.ESCALATE, "user2"))
        env.reset(seed=seed)
        assert do(env, "monitor")[0]["user0"] == "1000"
        assert do(env, "monitor")[0]["user1"] == "0101"
        bits, _ = do(env, "monitor")
        assert (bits["user0"], bits["user1"], bits["user2"]) == ("0000", "0001", "0101")


def test_sensors_miss_some_scans_and_exploits_and_all_escalations(play):
    seen = {Deed.SCAN: 0, Deed.EXPLOIT: 0, Deed.ESCALATE: 0, Deed.IMPACT: 0}
    for deed in seen:
        for seed in range(200):
            env = play((deed, "user0"))
            env.reset(seed=seed)
            seen[deed] += do(env)[0]["user0"][:2] != "00"
    assert seen[Deed.SCAN] / 200 == pytest.approx(0.6, abs=0.1)
    assert seen[Deed.EXPLOIT] / 200 == pytest.approx(0.75, abs=0.1)
    assert seen[Deed.ESCALATE] == seen[Deed.IMPACT] == 0


def test_there_are_false_alarms_at_hosts_that_nobody_touched(play, monkeypatch):
    monkeypatch.setattr(netdefense, "FALSE_ALARM_CHANCE", 0.1)
    alarms = []
    for seed in range(20):
        env = play()
        env.reset(seed=seed)
        for _ in range(100):
            alarms += [(host, bits[:2]) for host, bits in do(env)[0].items() if bits[:2] != "00"]
    assert set(alarms) == {(host, kind) for host in HOSTS for kind in ("10", "01")}
    assert len(alarms) / 2000 == pytest.approx(0.1, abs=0.03)


def test_sensors_are_blind_while_the_attacker_is_root_on_the_defenders_host(play):
    env = play((Deed.EXPLOIT, "user0"), (Deed.WAIT, "user0"), (Deed.EXPLOIT, "user1"), defender=ROOT)
    assert do(env, "monitor")[0]["user0"] == "0000"
    assert do(env, "restore defender")[0]["user0"] == "0000"
    assert do(env, "monitor")[0]["user1"] == "0101"


# ---- what the attacker does ----


@every_red
def test_the_attacker_reaches_the_operational_server_if_nobody_defends_it(red):
    for seed in range(20):
        env = Netdefense(red=red)
        total, deeds = episode(env, waits, seed)
        assert deeds[-1] == ("impact", "ops_server")
        assert env.statistics()["impacts"] > 20
        assert total < -300


def test_b_line_needs_one_host_of_each_subnet_and_not_always_the_same():
    routes = set()
    for seed in range(20):
        env = Netdefense(red="b_line")
        _, deeds = episode(env, waits, seed)
        route = tuple(dict.fromkeys(target for _, target in deeds))
        assert [host.rstrip("0123456789") for host in route] == ["user", "server", "ops_server"]
        for host in route:
            own = [deed for deed, target in deeds if target == host and deed != "impact"]
            assert own == ["scan", *["exploit"] * (len(own) - 2), "escalate"]
        routes.add(route)
    assert len(routes) > 5


def test_b_line_starts_again_from_the_last_host_that_is_left_to_it():
    env = Netdefense(red="b_line")
    env.reset(seed=0)
    for _ in range(50):
        env.step(0)
    entry, relay, _ = (HOSTS[host] for host in env._network.route)
    do(env, f"restore {relay}")
    assert env.true_state()["attacker"] == ("impact", "ops_server", "ops_server")
    do(env, "restore ops_server")
    assert env.true_state()["attacker"] == ("scan", entry, relay)


def test_meander_takes_a_subnet_before_it_turns_to_the_next():
    for seed in range(10):
        _, deeds = episode(Netdefense(red="meander"), waits, seed)
        roots = [HOSTS.index(target) for deed, target in deeds if deed == "escalate"]
        assert set(roots[:5]) == set(netdefense.SUBNETS[0])
        assert set(roots[5:10]) == set(netdefense.SUBNETS[1])
        assert roots[-1] == HOSTS.index("ops_server")
        scans = [HOSTS.index(target) for deed, target in deeds if deed == "scan"]
        assert set(scans[:5]) == set(netdefense.SUBNETS[0])
        assert [deed for deed, _ in deeds[:5]] == ["scan"] * 5


def test_meander_goes_on_although_hosts_that_it_had_are_taken_from_it():
    env = Netdefense(red="meander")
    for seed in range(10):
        episode(env, lambda _: ACTIONS.index("restore user0") if level(env, "user0") == ROOT else 0, seed)
        assert env.statistics()["restores"] == 1
        assert env.statistics()["impacts"] > 0


def test_meander_takes_a_host_again_if_it_needs_one_to_go_on_from():
    env = Netdefense(red="meander")
    env.reset(seed=0)
    env._network.taken[:5] = [True] * 5
    env.step(0)
    assert env.true_state()["attacker"][:2] == ("scan", "outside")


# ---- what it costs ----


def test_every_compromised_host_costs_its_value_with_root_and_half_of_it_with_user(play):
    for host, value in zip(HOSTS, netdefense.VALUES, strict=True):
        assert do(play(**{host: ROOT}))[1] == pytest.approx(-value)
        assert do(play(**{host: USER}))[1] == pytest.approx(-value / 2)
    assert do(play(user0=ROOT, server0=USER))[1] == pytest.approx(-0.35)
    assert do(play())[1] == 0


def test_an_impact_costs_ten(play):
    assert do(play((Deed.IMPACT, "ops_server"), ops_server=ROOT))[1] == pytest.approx(-11)


@every_red
def test_a_watchful_defender_loses_less_than_half_of_what_a_sleeping_one_loses(red):
    env = Netdefense(red=red)
    asleep = np.mean([episode(env, waits, seed)[0] for seed in range(20)])
    awake = np.mean([episode(env, Watchful(), seed)[0] for seed in range(20)])
    assert asleep < -600
    assert awake > asleep / 2


def test_statistics_are_numbers_that_add_up(play):
    env = play((Deed.EXPLOIT, "user0"), (Deed.IMPACT, "ops_server"), server0=ROOT, server1=USER)
    assert set(env.statistics().values()) == {0.0}
    do(env, "harden user0")
    do(env, "restore server0")
    found = env.statistics()
    assert all(type(value) is float for value in found.values())
    assert (found["impacts"], found["restores"], found["exploits"]) == (1, 1, 1)
    taken = level(env, "user0") == USER
    assert found["hosts_compromised"] == (2 + 1) / 2 + taken
    assert found["hosts_rooted"] == 0.5


# ---- looking on ----


@every_red
@some_backends
def test_the_true_state_of_many_is_asked_for_by_map(red, backend):
    alone = Netdefense(red=red)
    alone.reset(seed=8)
    with stretto.make_vec(Netdefense, 3, env_kwargs={"red": red}, backend=backend) as envs:
        envs.reset(seed=[7, 8, 9])
        for action in range(40):
            envs.step([action] * 3)
            alone.step(action)
        states = envs.map(lambda env: env.unwrapped.true_state())
    assert states[1] == alone.true_state()
    assert all(len(state["levels"]) == 13 and sum(state["levels"]) > 0 for state in states)


def test_the_picture_shows_what_is_true_what_is_believed_and_where_the_attacker_is(play):
    env = play(user3=ROOT)
    env.render_mode = "rgb_array"
    pictures = [env.render()]
    for action in ("analyse user3", "decoy_ssh user3", "isolate user3", "restore user3"):
        do(env, action)
        pictures.append(env.render())
    assert all(picture.shape == (248, 360, 3) and picture.dtype == np.uint8 for picture in pictures)
    assert len({picture[:240].tobytes() for picture in pictures}) == 5


def test_the_text_has_a_line_for_every_host(play):
    env = play((Deed.EXPLOIT, "user3"), user3=ROOT)
    env.render_mode = "ansi"
    do(env, "monitor")
    first, *lines = env.render().splitlines()
    assert first == "step 1 of 100; scripted: exploit at user3 from user3"
    assert [line.split()[0] for line in lines] == list(HOSTS)
    assert "believed: suspected" in lines[3]
    assert "seen: attack" in lines[3]


def test_nothing_is_drawn_where_nothing_was_asked_for():
    env = Netdefense()
    env.reset(seed=0)
    assert env.render() is None
