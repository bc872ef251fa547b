"""Missions by the names that cogames has for them, on command lines as cogames has them."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib

import pytest

pytest.importorskip("cogames", reason="cogames is not installed; make test-worlds has it")

from stretto.cli.app import main
from stretto.errors import UsageError
from stretto.missions.resolve import find_missions

SEED_LINE = "eval -m machina_1 -p random --cogs 4 --episodes 2 --steps 20 --seed 42 --jobs 2 --parallel-policy"


def test_the_command_lines_of_cogames_work_here(capfd):
    assert main([*SEED_LINE.split(), "--format", "json", "--action-timeout-ms", "250", "--quiet"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert [one["steps"] for one in report["episodes"]] == [20, 20]
    assert len(report["episodes"][0]["rewards"]) == 4


def test_the_callers_process_never_imports_cogames():
    code = f"import sys; from stretto.cli.app import main; main({SEED_LINE.split()!r}); print(*sys.modules)"
    names = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1].split()
    assert "stretto.cli.eval" in names
    assert not {"cogames", "mettagrid", "scipy"} & set(names)


def test_replays_are_in_the_format_of_mettagrid(tmp_path, capfd):
    folder = tmp_path / "replays"
    line = f"eval -m machina_1 -p starter -c 4 -e 2 -s 20 --jobs 1 --save-replay-dir {folder} --format json --quiet"
    assert main(line.split()) == 0
    rewards = [list(one["rewards"].values()) for one in json.loads(capfd.readouterr().out)["episodes"]]
    replays = [json.loads(zlib.decompress(path.read_bytes())) for path in sorted(folder.glob("*.json.z"))]
    assert [one["version"] for one in replays] == [4, 4]
    assert [one["max_steps"] for one in replays] == [20, 20]
    # mettagrid's replays add up rewards in double precision, its episodes in single.
    assert [one["infos"]["episode_rewards"] for one in replays] == [pytest.approx(one, abs=1e-6) for one in rewards]


def test_names_patterns_and_files_are_found():
    assert [one.name for one in find_missions("machina_1")] == ["machina_1"]
    assert [one.name for one in find_missions("cogames:arena")] == ["arena"]
    assert [one.name for one in find_missions("planning_*")] == [
        f"planning_unlock_chain_{how}" for how in ("easy", "medium", "hard")
    ]
    assert find_missions("machina_1", variants=["no_clips"])[0].name == "machina_1+no_clips"


def test_a_file_with_a_configuration_is_a_mission(tmp_path):
    from stretto.adapters.cogames.missions import make

    path = tmp_path / "mine.json"
    path.write_text(json.dumps(make("arena", cogs=2).config.model_dump(mode="json")))
    (mission,) = find_missions(f"cogames:{path}")
    world = mission.make()
    assert (mission.name, len(world.possible_agents)) == ("mine", 2)


def test_what_is_misspelled_is_refused_with_what_is_near():
    with pytest.raises(UsageError, match="machina_1"):
        find_missions("machina_2")
    with pytest.raises(UsageError, match="Unknown variant"):
        find_missions("machina_1", variants=["no_such"])
    with pytest.raises(UsageError, match="map_seed"):
        find_missions("machina_1", env_kwargs={"size": 3})


def test_missions_are_listed(capsys):
    assert main(["missions"]) == 0
    told = capsys.readouterr().out
    assert "machina_1" in told
    assert "foundry_1" in told


def test_a_mission_in_which_agents_talk_is_refused():
    with pytest.raises(UsageError, match="talk"):
        find_missions("machina_1", variants=["talk"])[0].make()
