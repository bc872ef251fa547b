"""Networks that other programs made, as policies: Stable-Baselines3's models, ONNX files, modules of torch and TorchRL."""

from __future__ import annotations

import inspect
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.errors import UsageError
from stretto.policies.network_policy import ActionReader
from stretto.policies.spec import parse_policy
from stretto.safetensors import safetensors

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.usefixtures("workers_with_torch")

BOX4 = spaces.Box(-1, 1, (4,))


class Net(torch.nn.Module):
    """Scores for CartPole's two actions."""

    def __init__(self, hidden=8):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 2))

    def forward(self, seen):
        return self.layers(seen)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(3)
    return Net()


def by_hand(net):
    """The same network as a function of one observation."""

    def act(observation):
        with torch.no_grad():
            return int(net(torch.from_numpy(np.stack([observation]))).argmax())

    return act


def rewards(policy, world="CartPole-v1", episodes=4, **options):
    report = stretto.evaluate(world, policy, episodes=episodes, **options)
    assert not any(record.failure for record in report.records), report.records[0].failure
    return [record.rewards for record in report.records]


# --- modules of torch ---


def test_a_module_of_torch_is_a_policy_and_acts_by_its_best_score(net):
    expected = rewards(by_hand(net), jobs=0)
    for jobs in (0, 2):
        assert rewards(net, jobs=jobs) == expected
    for strategy in ("sequential", "processes", "batched"):
        assert rewards(net, jobs=0, strategy=strategy) == expected


def test_a_class_of_modules_takes_arguments_and_weights(net, tmp_path):
    weights = {name: values.numpy() for name, values in net.state_dict().items()}
    (tmp_path / "net.safetensors").write_bytes(b"".join(map(bytes, safetensors(weights))))
    (tmp_path / "nets.py").write_text(f"import torch\n\n\n{inspect.getsource(Net)}")
    text = f"class={tmp_path}/nets.py:Net,data={tmp_path}/net.safetensors,kw.hidden=8"
    assert rewards(text, jobs=2) == rewards(net, jobs=0)
    with pytest.raises(UsageError, match="width"):
        rewards(f"{tmp_path}/nets.py:Net,kw.width=8", jobs=0)


@pytest.mark.filterwarnings("ignore:.*(LeafSpec|TreeSpec|torch.jit)")
def test_modules_that_were_saved_whole_are_policies(net, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(net, torch.zeros(2, 4)).save(tmp_path / "net.pt")
        rows = torch.export.Dim("rows", min=1)
        torch.export.save(
            torch.export.export(net, (torch.zeros(2, 4),), dynamic_shapes=({0: rows},)), tmp_path / "net.pt2"
        )
    expected = rewards(net, jobs=0)
    for name in ("net.pt", "net.pt2"):
        assert rewards(str(tmp_path / name), jobs=0) == expected


def test_modules_of_torchrl_act_without_exploration(net):
    pytest.importorskip("torchrl", reason="torchrl is not installed")
    from tensordict.nn import TensorDictModule
    from torchrl.modules import OneHotCategorical, ProbabilisticActor

    scores = TensorDictModule(net, in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(scores, in_keys=["logits"], distribution_class=OneHotCategorical)
    assert rewards(actor, jobs=0) == rewards(net, jobs=0)


# --- ONNX files ---


@pytest.fixture(scope="module")
def exported(net, tmp_path_factory):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    folder = tmp_path_factory.mktemp("onnx")
    rows = torch.export.Dim("rows", min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, shapes in (("free.onnx", ({0: rows},)), ("one.onnx", None)):
            example = (torch.zeros(1 if shapes is None else 2, 4),)
            torch.onnx.export(
                net.eval(), example, str(folder / name), input_names=["seen"], dynamic_shapes=shapes, verbose=False
            )
    return folder


def test_an_onnx_file_is_a_policy_whether_its_rows_are_free_or_one(net, exported):
    expected = rewards(net, jobs=0)
    for name in ("free.onnx", "one.onnx"):
        for jobs in (0, 2):
            assert rewards(str(exported / name), jobs=jobs) == expected


# --- Stable-Baselines3 ---


@pytest.mark.parametrize(
    ("algorithm", "world", "settings"),
    [("PPO", "CartPole-v1", {"n_steps": 64}), ("DQN", "CartPole-v1", {}), ("TD3", "Pendulum-v1", {})],
)
def test_a_model_of_stable_baselines3_is_a_policy_as_a_file_and_as_an_object(algorithm, world, settings, tmp_path):
    sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    model = getattr(sb3, algorithm)("MlpPolicy", world, seed=0, device="cpu", **settings)
    model.save(tmp_path / "model.zip")

    def by_predict(observation):
        return model.predict(observation, deterministic=True)[0]

    expected = rewards(by_predict, world, 2, steps=60, jobs=0)
    found = rewards(str(tmp_path / "model.zip"), world, 2, steps=60, jobs=0)
    if world == "CartPole-v1":
        assert found == expected
    else:  # last bits depend on the shape of a batch
        assert [one["agent_0"] for one in found] == pytest.approx([one["agent_0"] for one in expected], rel=1e-3)
    assert rewards(str(tmp_path / "model.zip"), world, 2, steps=60, jobs=2) == found
    assert rewards(model, world, 2, steps=60, jobs=2) == found


def test_observations_are_normalized_as_they_were_in_training(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    envs = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    model = sb3.PPO("MlpPolicy", envs, n_steps=64, n_epochs=1, seed=1, device="cpu").learn(64)
    model.save(tmp_path / "model.zip")
    envs.save(str(tmp_path / "normalize.pkl"))

    def by_predict(observation):
        return model.predict(envs.normalize_obs(observation), deterministic=True)[0]

    text = f"{tmp_path}/model.zip,kw.normalize={tmp_path}/normalize.pkl"
    assert rewards(text, jobs=0) == rewards(by_predict, jobs=0)
    envs.close()


def test_a_model_is_known_by_its_content_and_not_by_its_folder(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    from stretto.policies.identity import identify_policy

    model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        model.save(tmp_path / folder / "model.zip")
    one, other = (identify_policy(parse_policy(f"{tmp_path}/{folder}/model.zip")) for folder in "ab")
    assert one["settings" if "settings" in one else "code"] == other["settings" if "settings" in other else "code"]
    assert [*one["data"]] == ["model.zip"]


# --- what is refused ---


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("none.onnx", None, "the file of a policy must exist"),
        ("empty.zip", b"no zip", "a model that Stable-Baselines3 has saved, and .*empty.zip is none"),
    ],
)
def test_files_that_are_no_policies_are_refused_in_one_sentence(name, content, told, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=told):
        parse_policy(str(tmp_path / name))


def test_a_file_that_can_run_code_needs_to_be_trusted(tmp_path):
    (tmp_path / "net.pt").write_bytes(b"")
    with pytest.raises(UsageError, match="pass --allow-import if you trust the file"):
        parse_policy(str(tmp_path / "net.pt"), allow_import=False)


# --- what comes out of a network ---

READ = {
    "scores": (spaces.Discrete(3, start=1), [[0.0, 2.0, 1.0]], [2]),
    "an action": (spaces.Discrete(3), [2], [2]),
    "an action in a row": (spaces.Discrete(3), [[1]], [1]),
    "scores of several choices": (spaces.MultiDiscrete([2, 3]), [[0.0, 1.0, 5.0, 0.0, 1.0]], [[1, 0]]),
    "several choices": (spaces.MultiDiscrete([2, 3]), [[1, 2]], [[1, 2]]),
    "bits": (spaces.MultiBinary(3), [[0.2, 0.9, 1.0]], [[0, 1, 1]]),
    "numbers out of bounds": (spaces.Box(-1, 1, (2,)), [[-3.0, 0.5]], [[-1.0, 0.5]]),
}


@pytest.mark.parametrize(("space", "outputs", "actions"), READ.values(), ids=READ)
def test_actions_and_scores_are_read_by_the_space(space, outputs, actions):
    found = ActionReader(BOX4, space).actions(np.array(outputs), [np.zeros(4)])
    assert np.array_equal(found, actions)
    assert all(space.contains(one) for one in found)


def test_the_best_score_is_that_of_an_allowed_action():
    seen = spaces.Dict(action_mask=spaces.MultiBinary(3), place=BOX4)
    reader = ActionReader(seen, spaces.Discrete(3))
    observation = {"action_mask": np.array([1, 0, 1]), "place": np.zeros(4)}
    assert reader.actions(np.array([[0.0, 9.0, 1.0]]), [observation]) == [2]


def test_outputs_of_the_wrong_shape_are_refused_with_both_shapes():
    with pytest.raises(UsageError, match=r"must return an action or 3 scores a row, got a row of shape \(2,\)"):
        ActionReader(BOX4, spaces.Discrete(3)).actions(np.zeros((1, 2)), [0])
    with pytest.raises(UsageError, match=r"a row for each of 2 observations, got shape \(1, 3\)"):
        ActionReader(BOX4, spaces.Discrete(3)).actions(np.zeros((1, 3)), [0, 0])
