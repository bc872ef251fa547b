"""One episode of a plan, played in this process and looked at after every step: for a terminal, or for a film."""

from __future__ import annotations

from collections.abc import Container, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from stretto.adapters.local import LocalWorlds
from stretto.budget import NativeThreads
from stretto.core import Action, AgentId
from stretto.evaluation.films.film_files import film_format, film_path, write_film
from stretto.evaluation.plan import Facts, Plan, PlaySettings
from stretto.evaluation.playing.episode_worker import EpisodeWorkerFactory
from stretto.evaluation.playing.rendering import RGB, make_visible, rgb, visible_worlds
from stretto.evaluation.playing.scheduler import Scheduler
from stretto.evaluation.records import EpisodeRecord, RecordKey
from stretto.policies.runners import InPlace
from stretto.rollout import rollout
from stretto.seeding import LATE_IMPORT, GlobalDraws
from stretto.workers.backends import PROCESS, SERIAL
from stretto.workers.base import Backend
from stretto.workers.mail import unsendable


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
    env, shows = make_visible(plan.missions[mission], render_mode)
    worlds = visible_worlds(env, plan.turns)
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


@dataclass(frozen=True, slots=True)
class Filmed:
    """What came of filming an episode: a file, or `why` there is none."""

    key: RecordKey
    path: Path | None
    why: str = ""


def unfilmable(plan: Plan) -> dict[str, str]:
    """Return the missions of a plan that have no pictures, and why not."""
    with Scheduler(plan, PlaySettings(), _elsewhere(plan)) as run:
        return run.look_at_pictures()


def films(
    plan: Plan, records: Sequence[EpisodeRecord], count: int, folder: Path, without: Container[str] = ()
) -> Iterator[Filmed]:
    """Film the first `count` of the episodes of each mission and policy that were played, but for missions `without`.

    A film ends where its record does. Episodes in which a process died or hung are not filmed: they would take this
    process along.
    """
    with Scheduler(plan, PlaySettings(), _elsewhere(plan)) as run:
        facts = run.look(strict=False)
    for mission, entry in plan.pairs():
        pair = plan.missions[mission].name, plan.entries[entry].label
        played = sorted((r for r in records if r.key[:2] == pair), key=lambda record: record.episode)
        left = count if pair[0] not in without else 0
        for record in played:
            if not left:
                break
            if record.failure is not None and record.failure.lost:
                yield Filmed(record.key, None, "its process died or hung, and would take this one along")
                continue
            left -= 1
            shown = _shown(plan, facts[mission, entry], (mission, entry, record.episode), record.steps)
            yield _film(record, [moment.picture for moment in shown], folder)


def _elsewhere(plan: Plan) -> Backend:
    """Return where a plan is looked at: not here if it can be sent elsewhere, as a policy may die in its first step."""
    return PROCESS if unsendable(EpisodeWorkerFactory(plan, PlaySettings())) is None else SERIAL


def _film(record: EpisodeRecord, shown: Sequence[Any], folder: Path) -> Filmed:
    if not shown:
        return Filmed(record.key, None, "it failed before there was anything to see")
    pictures = [picture for picture in map(rgb, shown) if picture is not None]
    if not pictures or len({picture.shape for picture in pictures}) > 1:
        return Filmed(record.key, None, "its render() does not give RGB arrays of one size")
    return Filmed(record.key, write_film(pictures, film_path(folder, record.key, film_format())))


def _shown(plan: Plan, facts: Facts, which: tuple[int, int, int], steps: int) -> list[Moment]:
    """Return what is seen of an episode; it is played again if it was the first here to import torch, see `LateImport`."""
    while True:
        draws = GlobalDraws()
        with closing(replay(plan, facts, *which, RGB)) as moments:
            shown = list(_until_it_fails(islice(moments, steps + 1)))
        if LATE_IMPORT not in draws.names():
            return shown


def _until_it_fails(moments: Iterator[Moment]) -> Iterator[Moment]:
    try:
        yield from moments
    except (Exception, SystemExit):  # noqa: BLE001  its record tells why; the film shows how it came to that
        return
