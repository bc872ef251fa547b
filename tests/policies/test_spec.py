"""From what a user writes to a policy that chooses: names, files, settings, installed packages, classes, functions."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces

from stretto.core import AgentPolicy, MultiAgentPolicy, WorldSpec
from stretto.errors import UsageError
from stretto.evaluation.evaluate import evaluate
from stretto.policies.builtin import Random
from stretto.policies.loading import load_policy, reset_policy
from stretto.policies.registry import known_policies
from stretto.policies.spec import PolicySpec, parse_policy

WORLD = WorldSpec(
    ("ann", "bob"), dict.fromkeys(("ann", "bob"), spaces.Discrete(9)), dict.fromkeys(("ann", "bob"), spaces.Discrete(9))
)


class Sum(AgentPolicy):
    """Adds up what it saw in this episode."""

    def __init__(self, start=0):
        self.total = start

    def step(self, observation):
        self.total += observation
        return self.total


class Told(AgentPolicy):
    def __init__(self, world, agent, factor=1):
        self.place = world.agents.index(agent)
        self.factor = factor

    def step(self, observation):
        return self.factor * self.place


class Team(MultiAgentPolicy):
    def __init__(self, world, factor=1):
        super().__init__(world)
        self.factor = factor

    def load(self, path):
        self.path = path

    def agent_policy(self, agent):
        return Sum(self.factor)


class DuckTeam:
    def __init__(self, world):
        self.agents = world.agents

    def agent_policy(self, agent):
        return DuckAgent()


class DuckAgent:
    def step(self, observation):
        return observation + 1


class Caller:
    """Counts its calls, and remembers which file it was given."""

    def __init__(self, count=0):
        self.count = count
        self.path = None

    def load(self, path):
        self.path = path

    def reset(self):
        self.count += 100

    def __call__(self, observation):
        self.count += 1
        return self.count


def triple(observation, times=3):
    return observation * times


def play(policy, observations=(1, 2), agent="ann"):
    chooser = load_policy(PolicySpec.of(policy), WORLD).agent_policy(agent)
    reset_policy(chooser, np.random.default_rng(0))
    return [chooser.step(observation) for observation in observations]


@pytest.fixture
def imports(monkeypatch):
    """Undo what a test adds to the import path and to the modules."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def install(tmp_path, monkeypatch, imports):
    """Install a package with entry points, as pip would leave it: a module, and a dist-info folder."""

    def add(name, source, entry_points):
        site = tmp_path / f"site-{name}"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(textwrap.dedent(source))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[stretto.policies]\n" + "\n".join(entry_points) + "\n")
        monkeypatch.syspath_prepend(site)

    return add


@pytest.fixture
def walker_file(tmp_path, monkeypatch, imports):
    """The file `mine/walker.py`, which imports the file beside it; the current folder is the one above."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "pace.py").write_text("PACE = 7\n")
    (folder / "walker.py").write_text(
        textwrap.dedent("""
            import dataclasses
            import pace

            @dataclasses.dataclass
            class Walker:
                extra: int = 0

                def step(self, observation):
                    return observation + pace.PACE + self.extra
            """)
    )
    monkeypatch.chdir(tmp_path)
    return folder / "walker.py"


# --- names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("random", "stretto.policies.builtin:Random"),
        ("noop", "stretto.policies.builtin:Noop"),
        ("gatherer", "stretto.policies.foundry:Gatherer"),
        ("planner", "stretto.policies.foundry:Planner"),
        ("neural", "stretto.policies.neural:Neural"),
        (" random ", "stretto.policies.builtin:Random"),
        ("json.decoder:Outer.Inner", "json.decoder:Outer.Inner"),
    ],
)
def test_a_name_is_kept_as_the_label_and_leads_to_a_class(name, target):
    assert parse_policy(name) == PolicySpec(name.strip(), target)


@pytest.mark.parametrize(
    ("name", "nearest"), [("randon", "random"), ("Random", "random"), ("plan", "planner"), ("gathering", "gatherer")]
)
def test_an_unknown_name_is_refused_with_the_nearest_known_ones(name, nearest):
    with pytest.raises(UsageError, match=rf"got '{name}'; did you mean .*{nearest}"):
        parse_policy(name)


def test_a_name_that_is_near_to_none_is_refused_with_all_of_them():
    with pytest.raises(UsageError, match="known are random, noop, gatherer, planner, neural"):
        parse_policy("xyzzyx")


def test_random_is_loaded_by_its_name():
    assert isinstance(load_policy(parse_policy("random"), WORLD), Random)


def test_a_module_and_a_class_are_imported_when_loaded_and_not_before(tmp_path, monkeypatch):
    spec = parse_policy("tests.policies.test_spec:Sum")
    assert [int(action) for action in play(spec)] == [1, 3]
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "not_yet.py").write_text("raise SystemExit('nobody may import this')\n")
    parse_policy("not_yet:Class")


def test_a_module_that_is_found_beside_the_file_of_a_mission_alone_is_refused(tmp_path):
    # Its code would be on no record: an evaluation would go on after it was edited, without a word.
    (tmp_path / "game.py").write_text("from tests.worlds import CountTo as Game\n")
    (tmp_path / "beside.py").write_text("def act(observation):\n    return 0\n")
    with pytest.raises(UsageError, match="module must be importable, got 'beside'"):
        evaluate(f"{tmp_path}/game.py:Game", "beside:act", episodes=1, jobs=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no.such.module:Class", "module must be importable, got 'no.such.module'; install it, or write file.py:NAME"),
        ("tests.policies.test_spec:Sun", "got 'Sun', which tests.policies.test_spec does not have; did you mean .*Sum"),
        ("tests.policies.test_spec:WORLD", "got 'tests.policies.test_spec:WORLD', an object of WorldSpec"),
        ("tests.policies.test_spec:Nothing", "a class without any"),
        ("class=tests.policies.test_spec:Sum,kw.begin=1", r"got begin for .*Sum,kw.begin=1, which takes start"),
        ("class=tests.policies.test_spec:Team,kw.begin=1", r"got begin for .*, which takes factor$"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_the_reason(text, message):
    with pytest.raises(UsageError, match=message):
        load_policy(parse_policy(text), WORLD)


class Nothing:
    pass


class Blind(DuckTeam):
    def __init__(self):
        pass


class Mistaken(DuckTeam):
    def __init__(self, size=3, *, depth=2):
        self.size = size


class Annotated(DuckTeam):
    def __init__(self, depth: int = 2, spec: WorldSpec = None):
        super().__init__(spec)


class Passing(Team):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def test_a_class_with_no_parameter_for_the_world_is_refused_with_the_right_signature():
    for kind, signature in ((Blind, "self, world"), (Mistaken, "self, world, size=3, depth=2")):
        with pytest.raises(
            UsageError, match=rf"which {kind.__name__} does not have; write def __init__\({signature}\)"
        ):
            load_policy(PolicySpec.of(kind), WORLD)
    assert load_policy(PolicySpec.of(Annotated), WORLD).agents == WORLD.agents
    assert load_policy(PolicySpec("passing", Passing, {"factor": 4}), WORLD).factor == 4


def test_arguments_of_a_function_are_checked_too():
    with pytest.raises(UsageError, match=r"got time for triple, which takes times; did you mean times"):
        load_policy(PolicySpec("triple", triple, {"time": 2}), WORLD)


def test_a_policy_is_labelled_by_the_name_that_it_is_given():
    spec = parse_policy("class=random,name=base line,proportion=2")
    assert (spec.name, spec.target) == ("base line", parse_policy("random").target)
    assert parse_policy("noop,name=still").name == "still"


def test_a_package_that_the_policy_itself_misses_is_not_mistaken_for_the_policy(tmp_path, imports):
    (tmp_path / "needy.py").write_text("import a_package_that_is_missing\n")
    sys.path.append(str(tmp_path))
    for text in ("needy:Class", f"{tmp_path}/needy.py:Class"):
        with pytest.raises(ModuleNotFoundError, match="a_package_that_is_missing"):
            load_policy(parse_policy(text), WORLD)


# --- files ----------------------------------------------------------------------------------------------------


def test_a_file_is_found_by_a_worker_in_another_folder(walker_file, tmp_path_factory):
    spec = parse_policy("mine/walker.py:Walker")
    assert (spec.name, spec.target) == ("mine/walker.py:Walker", f"{walker_file}:Walker")
    program = """
        import pickle, sys
        from stretto.core import WorldSpec
        from stretto.policies.loading import load_policy
        spec = pickle.loads(sys.stdin.buffer.read())
        print(load_policy(spec, WorldSpec(("ann",), {}, {})).agent_policy("ann").step(1))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = subprocess.run(
        command, input=pickle.dumps(spec), cwd=elsewhere, capture_output=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (b"8", b"")


def test_a_file_that_was_changed_is_loaded_anew(walker_file):
    assert play("mine/walker.py:Walker") == [8, 9]
    walker_file.write_text(walker_file.read_text().replace("observation +", "observation -"))
    assert play("mine/walker.py:Walker") == [-6, -5]


def test_a_file_is_loaded_once_and_leaves_no_other_file_beside_it(walker_file, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # for the neighbour, which Python itself imports
    one, two = (type(load_policy(parse_policy("mine/walker.py:Walker"), WORLD).agent_policy("ann")) for _ in range(2))
    assert one is two
    assert sorted(path.name for path in walker_file.parent.iterdir()) == ["pace.py", "walker.py"]


def test_a_file_that_fails_while_it_is_loaded_fails_each_time(tmp_path, imports):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            load_policy(parse_policy(f"{tmp_path}/broken.py:Class"), WORLD)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine/runner.py:Walker", r"the file of a policy must exist, got /.*/mine/runner\.py"),
        ("mine/walker.py", r"name the class in the file, as in mine/walker\.py:Class"),
        ("mine/walker:Walker", r"'mine/walker' names no module and no \.py file"),
        ("mine/walker.py:", "a class stands after the last colon"),
        (":Walker", "names no module"),
        ("", "got ''; known are"),
    ],
)
def test_a_file_or_class_that_is_not_there_is_refused(walker_file, text, message):
    with pytest.raises(UsageError, match=message):
        parse_policy(text)


# --- settings -------------------------------------------------------------------------------------------------


def test_settings_stand_beside_the_class_in_any_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.safetensors").touch()
    text = "proportion=0.25, kw.deep=True, class=neural, data=w.safetensors, strategy=processes, kw.seed=3"
    assert parse_policy(text) == PolicySpec(
        text,
        "stretto.policies.neural:Neural",
        {"deep": True, "seed": 3},
        str(tmp_path / "w.safetensors"),
        0.25,
        "processes",
    )


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1", 1),
        ("-1.5e3", -1500.0),
        ("None", None),
        ("True", True),
        ("true", "true"),
        ("some text", "some text"),
        ("a,b", "a,b"),
        ("[1,2,[3]]", [1, 2, [3]]),
        ("(1,)", (1,)),
        ("{'a': 1, 'b': 2}", {"a": 1, "b": 2}),
        ('"1"', "1"),
        ("'a,kw.z=2,b'", "a,kw.z=2,b"),
        ("[not closed", "[not closed"),
        ("x==y", "x==y"),
        ("__import__('os')", "__import__('os')"),
    ],
)
def test_a_keyword_s_value_is_a_literal_where_it_is_one_and_else_text(written, value):
    assert parse_policy(f"class=random,kw.x={written},kw.last=0").kwargs == {"x": value, "last": 0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kw.x=1", "settings name its class, got 'kw.x=1'; add class=NAME"),
        ("class=randon", "got 'randon'; did you mean random"),
        ("class=random,portion=1", "got 'portion' .*; did you mean proportion"),
        ("class=random,kw.=1", r"got 'kw\.'"),
        ("class=random,kw.a.b=1", r"got 'kw\.a\.b'"),
        ("class=random,class=noop", "one value, got 'class' twice"),
        ("class=random,data=", "one value, got 'data' without one"),
        ("class=random,proportion=half", "a number above 0, got 'half'"),
        ("class=random,proportion=0", "a number above 0, got 0"),
        ("class=random,proportion=nan", "a number above 0, got nan"),
        ("class=random,strategy=process", "sequential, threads, .*, got 'process'; did you mean processes"),
        ("class=random,data=gone.safetensors", r"data must exist, got /.*gone\.safetensors"),
    ],
)
def test_malformed_settings_are_refused_in_one_sentence(text, message):
    with pytest.raises(UsageError, match=message) as refused:
        parse_policy(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("file", ["weights.pt", "weights.pkl", "weights.npz", "weights", "a.safetensors.pkl"])
def test_weights_in_a_file_that_can_run_code_are_refused(file):
    with pytest.raises(UsageError, match=r"\.safetensors .*pickles.* can run code"):
        parse_policy(f"class=neural,data={file}")
    with pytest.raises(UsageError, match="can run code"):
        PolicySpec("mine", Team, data=file)


def test_data_is_given_to_load_wherever_there_is_one(tmp_path):
    file = tmp_path / "w.safetensors"
    file.touch()
    assert load_policy(parse_policy(f"class={__name__}:Team,data={file}"), WORLD).path == str(file)
    shared = Caller()
    load_policy(PolicySpec("shared", shared, data=str(file)), WORLD)
    assert shared.path == str(file)
    for target in ("random", f"{__name__}:Sum", f"{__name__}:triple"):
        with pytest.raises(UsageError, match=r"data is given to a policy's load\(path\), which .* does not have"):
            load_policy(parse_policy(f"class={target},data={file}"), WORLD)


# --- specs from a file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["os:system", "mine/walker.py:Walker", "class=os:system,kw.command=ls"])
def test_what_a_file_names_is_not_imported_unless_that_is_allowed(text):
    with pytest.raises(UsageError, match=r"must be a known name.*got '.*'; pass --allow-import"):
        parse_policy(text, allow_import=False)


def test_a_file_may_use_known_names_with_settings(install):
    install("tidy", "class Tidy: ...", ["tidy = tidy:Tidy"])
    assert parse_policy("random", allow_import=False).target.endswith(":Random")
    assert parse_policy("class=random,kw.x=1", allow_import=False).kwargs == {"x": 1}
    assert parse_policy("tidy", allow_import=False).target == "tidy:Tidy"


# --- installed packages ---------------------------------------------------------------------------------------


def test_a_package_registers_policies_that_are_loaded_by_their_short_name(install):
    source = '''
        class Tidy:
            """Puts things back.

            One at a time.
            """

            def step(self, observation):
                return observation - 1
        '''
    install("tidy", source, ["tidy = tidy:Tidy"])
    assert play("tidy") == [0, 1]
    assert known_policies()["tidy"].summary == "Puts things back."
    with pytest.raises(UsageError, match="did you mean tidy"):
        parse_policy("tiddy")


def test_a_registered_policy_is_not_imported_before_it_is_loaded(install):
    install("loud", "raise RuntimeError('imported')", ["loud = loud:Loud"])
    spec = parse_policy("loud")
    with pytest.raises(RuntimeError, match="imported"):
        load_policy(spec, WORLD)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise RuntimeError('bad day')", "RuntimeError: bad day"),
        ("import a_package_that_is_missing", "ModuleNotFoundError: No module named 'a_package_that_is_missing'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = 1", "AttributeError: module 'broken' has no attribute 'Broken'"),
    ],
)
def test_an_installed_policy_that_fails_to_import_is_listed_with_its_error_and_hides_no_other(install, source, error):
    install("tidy", "class Tidy: ...", ["tidy = tidy:Tidy"])
    install("broken", source, ["broken = broken:Broken"])
    known = known_policies()
    assert known["broken"].error == error
    assert known["tidy"].error is None
    assert [known[name].error for name in ("random", "noop", "gatherer", "planner", "neural")] == [None] * 5


def test_an_installed_policy_cannot_take_the_name_of_ours_and_is_listed_by_its_target(install):
    install("sly", "class Sly: ...", ["random = sly:Sly"])
    assert parse_policy("random").target == "stretto.policies.builtin:Random"
    assert "the name random is taken" in known_policies()["sly:Sly"].error


def test_listing_imports_neither_our_policies_nor_torch():
    program = """
        import sys
        import stretto
        from stretto.policies.registry import known_policies
        from stretto.policies.spec import parse_policy
        assert all(policy.summary for policy in known_policies().values())
        parse_policy("neural")
        heavy = {"torch", "stretto.policies.builtin", "stretto.policies.neural", "stretto.policies.foundry"}
        print(sorted(heavy & set(sys.modules)))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# --- classes and callables ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "name", "expected"),
    [
        (Sum, "Sum", [1, 3]),
        (Team, "Team", [2, 4]),
        (DuckTeam, "DuckTeam", [2, 3]),
        (DuckAgent, "DuckAgent", [2, 3]),
        (triple, "triple", [3, 6]),
        (Caller(5), "Caller", [6, 7]),
        (Caller, "Caller", [101, 102]),
        ("class=tests.policies.test_spec:triple,kw.times=5", None, [5, 10]),
        ("class=tests.policies.test_spec:Sum,kw.start=5", None, [6, 8]),
        ("class=tests.policies.test_spec:Team,kw.factor=5", None, [6, 8]),
        ("class=tests.policies.test_spec:Caller,kw.count=5", None, [106, 107]),
        ("class=tests.policies.test_spec:Told,kw.factor=5", None, [0, 0]),
    ],
)
def test_classes_functions_and_objects_all_become_policies(policy, name, expected):
    assert PolicySpec.of(policy).name == (name or policy)
    assert play(policy) == expected


def test_an_agent_s_class_is_told_the_world_and_the_agent_if_it_asks_by_name():
    assert play(Told, agent="bob") == [1, 1]


def test_every_agent_has_an_object_of_its_own_where_a_class_was_given():
    policy = load_policy(PolicySpec.of(Sum), WORLD)
    ann, bob = policy.agent_policy("ann"), policy.agent_policy("bob")
    assert [ann.step(1), bob.step(5), ann.step(1)] == [1, 5, 2]


def test_an_object_is_shared_by_all_agents_and_no_episode_resets_it():
    policy = load_policy(PolicySpec.of(Caller()), WORLD)
    ann, bob = policy.agent_policy("ann"), policy.agent_policy("bob")
    reset_policy(ann, np.random.default_rng(0))
    assert [ann.step(0), bob.step(0), ann.step(0)] == [1, 2, 3]


def test_a_spec_is_its_own_spec():
    spec = parse_policy("random")
    assert PolicySpec.of(spec) is spec
    assert PolicySpec.of("random") == spec


@pytest.mark.parametrize("thing", [3, None, Sum(), DuckTeam(WORLD), Nothing])
def test_what_is_no_policy_is_refused_at_once(thing):
    with pytest.raises(UsageError, match="a policy is a class with agent_policy, step or __call__, or a function"):
        PolicySpec.of(thing)


def test_specs_travel_and_stay_equal():
    for policy in ("class=random,kw.x=[1]", Team, triple):
        spec = PolicySpec.of(policy)
        assert pickle.loads(pickle.dumps(spec)) == spec
        assert hash(spec) == hash(pickle.loads(pickle.dumps(spec)))
    offset = 4
    assert play(cloudpickle.loads(cloudpickle.dumps(PolicySpec.of(lambda seen: seen + offset)))) == [5, 6]


# --- resetting ------------------------------------------------------------------------------------------------


class ResetWithGenerator:
    def reset(self, generator):
        self.got = generator


class ResetWithOptional:
    def reset(self, generator=None):
        self.got = generator


class ResetWithName:
    def reset(self, *, rng):
        self.got = rng


class ResetWithAnything:
    def reset(self, *args):
        (self.got,) = args


class ResetWithNothing:
    def reset(self):
        self.got = None


class ResetWithOptions:
    def reset(self, *, verbose=False):
        self.got = verbose


@pytest.mark.parametrize("kind", [ResetWithGenerator, ResetWithOptional, ResetWithName, ResetWithAnything, Sum])
def test_a_reset_that_takes_a_generator_gets_it(kind):
    rng = np.random.default_rng(0)
    for _ in range(2):
        policy = kind()
        reset_policy(policy, rng)
        assert (policy.rng if kind is Sum else policy.got) is rng


def test_a_reset_that_takes_none_is_called_without():
    bare, options = ResetWithNothing(), ResetWithOptions()
    for policy in (bare, options):
        reset_policy(policy, np.random.default_rng(0))
    assert (bare.got, options.got) == (None, False)


def test_a_policy_without_a_reset_needs_none():
    reset_policy(DuckAgent(), np.random.default_rng(0))


def test_a_reset_that_belongs_to_one_object_alone_is_called_as_it_wants():
    calls = []
    for reset in (lambda: calls.append("none"), lambda rng: calls.append("one")):
        policy = DuckAgent()
        policy.reset = reset
        reset_policy(policy, np.random.default_rng(0))
    assert calls == ["none", "one"]


def test_the_signature_is_looked_at_once(monkeypatch):
    class Fresh(ResetWithGenerator):
        def reset(self, generator):
            self.got = generator

    reset_policy(Fresh(), np.random.default_rng(0))
    monkeypatch.setattr("inspect.signature", None)
    policy = Fresh()
    reset_policy(policy, np.random.default_rng(0))
    assert policy.got is not None


def test_what_a_reset_itself_raises_is_not_mistaken_for_a_wrong_call():
    class Failing:
        def reset(self, rng):
            raise TypeError("from inside")

    with pytest.raises(TypeError, match="from inside"):
        reset_policy(Failing(), np.random.default_rng(0))
