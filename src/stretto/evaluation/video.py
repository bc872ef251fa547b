"""One episode of a plan, played in this process and looked at after every step: for a terminal, or for a film."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from stretto.adapters.agents import as_agents
from stretto.adapters.local import LocalWorlds
from stretto.budget import NativeThreads
from stretto.checkpoint import atomic_write
from stretto.core import Action, AgentId
from stretto.errors import UsageError
from stretto.evaluation.episode_worker import EpisodeWorkerFactory
from stretto.evaluation.plan import Facts, Plan, PlaySettings
from stretto.evaluation.records import EpisodeRecord
from stretto.evaluation.scheduler import Scheduler
from stretto.missions.mission import Mission
from stretto.policies.runners import InPlace
from stretto.rollout import rollout
from stretto.seeding import GLOBAL_GENERATORS, LATE_IMPORT, GlobalDraws
from stretto.workers.backends import PROCESS, SERIAL
from stretto.workers.mail import unsendable

FRAMES_PER_SECOND = 12


@dataclass(frozen=True, slots=True)
class Moment:
    """What one sees after a step (or, with no actions, at the start). `names` are those of the actions by number, if any."""

    step: int
    picture: Any
    actions: dict[AgentId, Action]
    rewards: dict[AgentId, float]
    names: tuple[str, ...] = ()

    def does(self, agent: AgentId) -> str:
        """Say what an agent did, by its name if it has one."""
        action = self.actions[agent]
        if isinstance(action, int | np.integer) and 0 <= action < len(self.names):
            return self.names[int(action)]
        return " ".join(str(action).split())


def replay(
    plan: Plan, facts: Facts, mission: int, entry: int, episode: int, render_mode: str | None
) -> Generator[Moment]:
    """Play an episode as the plan has it, and yield what is seen at each moment.

    Raises:
        What a world or a policy raises.
    """
    env, shows = _made(plan.missions[mission], render_mode)
    # Private generators for all, whether they are needed or not: it is slow anyway to look at everything.
    worlds = LocalWorlds(lambda _: as_agents(env, plan.turns), 1, GLOBAL_GENERATORS)
    with closing(worlds), NativeThreads(plan.native_threads).capped():
        plans = plan.policy_plans(entry, facts, guarded=True)
        runner, names = InPlace(plans, worlds.spec, batched=True), worlds.spec.action_names
        begun = plan.episode(mission, entry, episode, facts.agents)
        for (step,) in rollout(worlds, runner, [begun], max_steps=plan.steps_of(mission)):
            if step.fault is not None:
                raise step.fault.error
            assert step.outcome is not None
            nothing = {} if step.actions else dict.fromkeys(step.outcome.acting, 0.0)
            rewards = {**nothing, **step.outcome.rewards}
            yield Moment(step.steps, _picture(worlds, shows), dict(step.actions), rewards, names)


def _made(mission: Mission, render_mode: str | None) -> tuple[Any, bool]:
    """Make a world, and say whether it can be seen in this way; it is asked first, since worlds warn of other ways."""
    env = mission.make()
    if render_mode not in (getattr(env, "metadata", None) or {}).get("render_modes", ()):
        return env, False
    env.close()
    return mission.make_with(render_mode)(), True


def _picture(worlds: LocalWorlds, shows: bool) -> Any:
    try:
        return worlds.render(0) if shows else None
    except Exception:  # noqa: BLE001  a world that cannot be shown can be played all the same
        return None


def watch_episode(plan: Plan, episode: int, render_mode: str = "ansi") -> Iterator[Moment]:
    """Play one episode of a plan with one mission and one entry, and yield what is seen."""
    with Scheduler(plan, PlaySettings(), SERIAL) as run:
        facts = run.look()
    yield from replay(plan, facts[0, 0], 0, 0, episode, render_mode)


def films(plan: Plan, records: Sequence[EpisodeRecord], count: int, folder: Path) -> Iterator[Path]:
    """Film the first `count` of the episodes of each mission and policy that were played; yield the files.

    A film ends where its record does. Episodes in which a process died or hung are passed over: they would take this
    process along.
    """
    # It is looked at elsewhere if it can be sent there: a policy may die in its first step.
    sendable = unsendable(EpisodeWorkerFactory(plan, PlaySettings())) is None
    with Scheduler(plan, PlaySettings(), PROCESS if sendable else SERIAL) as run:
        facts = run.look()
    for mission, entry in plan.pairs():
        pair = plan.missions[mission].name, plan.entries[entry].label
        safe = [r for r in records if r.key[:2] == pair and not (r.failure is not None and r.failure.lost)]
        for record in sorted(safe, key=lambda record: record.episode)[:count]:
            shown = _shown(plan, facts[mission, entry], (mission, entry, record.episode), record.steps)
            if not shown and record.failure is not None:
                continue  # it failed before there was anything to see
            name = "-".join((*pair, str(record.episode)))
            safe_name = "".join(letter if letter.isalnum() or letter in "-_.+" else "_" for letter in name)
            yield film(iter(shown), folder / "videos" / f"{safe_name}.gif")


def _shown(plan: Plan, facts: Facts, which: tuple[int, int, int], steps: int) -> list[Moment]:
    """Return what is seen of an episode; it is played again if it was the first here to import torch, see `LateImport`."""
    while True:
        draws = GlobalDraws()
        with closing(replay(plan, facts, *which, "rgb_array")) as moments:
            shown = list(_until_it_fails(islice(moments, steps + 1)))
        if LATE_IMPORT not in draws.names():
            return shown


def _until_it_fails(moments: Iterator[Moment]) -> Iterator[Moment]:
    try:
        yield from moments
    except (Exception, SystemExit):  # noqa: BLE001  its record tells why; the film shows how it came to that
        return


def check_films() -> None:
    """Refuse to film where that cannot be done."""
    if importlib.util.find_spec("PIL") is None:
        raise UsageError("films need Pillow; pip install 'stretto[video]'")


def film(moments: Iterator[Moment], path: Path) -> Path:
    """Save the pictures of an episode as a GIF."""
    check_films()
    from PIL import Image

    pictures = [np.asarray(moment.picture) for moment in moments if moment.picture is not None]
    if not pictures or pictures[0].ndim != 3:
        raise UsageError("this mission has no pictures: its render() gives no RGB arrays; leave out --video")
    images = [Image.fromarray(picture.astype(np.uint8)) for picture in pictures]
    path.parent.mkdir(parents=True, exist_ok=True)
    duration, content = 1000 // FRAMES_PER_SECOND, io.BytesIO()
    images[0].save(content, "GIF", save_all=True, append_images=images[1:], duration=duration, loop=0)
    atomic_write(path, content.getvalue())
    return path
