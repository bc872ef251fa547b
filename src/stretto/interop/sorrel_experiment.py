"""The epochs of an experiment of Sorrel's, in its own order, with private generators for the world and for each agent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from stretto.adapters.sorrel.world import begin_turn
from stretto.core import AgentId
from stretto.errors import Place
from stretto.seeding import GLOBAL_GENERATORS, PrivateGenerators, SeedTree

__calls_user_code__ = True

T = TypeVar("T")

_STAMP = "%Y-%m-%d-%H:%M:%S"


class Experiment:
    """Plays epochs as Sorrel's `run_experiment` does.

    What an agent draws when it acts, and in the hooks of its model, is its own. All else comes from the world's stream.
    """

    def __init__(self, env: Any, seed: int, output_dir: Path | None, *, animate: bool) -> None:
        self.env, self.settings = env, env.config.experiment
        tree = SeedTree(seed).child("sorrel")
        self._world = PrivateGenerators(tree.child("world"), 0, GLOBAL_GENERATORS)
        self.agents: dict[AgentId, Any] = {f"agent_{number}": agent for number, agent in enumerate(env.agents)}
        self._own = {agent: PrivateGenerators(tree.child("act", agent), 0, GLOBAL_GENERATORS) for agent in self.agents}
        self._names = {id(agent): name for name, agent in self.agents.items()}
        self._folder = _folder(env, output_dir)
        self._epoch = 0
        self._renderer: Any = None
        if animate:
            from sorrel.utils.visualization import ImageRenderer

            self._renderer = ImageRenderer(
                experiment_name=type(env).__name__,
                record_period=self.settings.record_period,
                num_turns=self.settings.max_turns,
            )

    def play(self, epoch: int) -> None:
        """Play an epoch, from the reset to the last hook."""
        env, self._epoch = self.env, epoch
        self._world.run(env.reset)
        films = self._renderer is not None and epoch % self.settings.record_period == 0
        self._for_each("starting", env._model_start_epoch_action, epoch)  # noqa: SLF001  what Sorrel calls itself
        while env.turn < self.settings.max_turns:
            if films:
                self._renderer.add_image(env.world)
            self._turn()
            if env.world.is_done and env.stop_if_done:
                break
        env.world.is_done = True
        if films:
            self._renderer.save_gif(epoch, self._folder / "./gifs/")
        self._for_each("ending", env._model_end_epoch_action, epoch)  # noqa: SLF001  what Sorrel calls itself

    def _for_each(self, doing: str, hook: Callable[[Any, int], Any], epoch: int) -> None:
        for name, agent in self.agents.items():
            self._as_agent(name, doing, hook, agent, epoch)

    def _turn(self) -> None:
        env = self.env
        if type(env).take_turn is not sys.modules["sorrel.environment"].Environment.take_turn:
            with self._agents_draw_their_own():
                self._world.run(env.take_turn)
            return
        self._world.run(begin_turn, env)
        for name, agent in self.agents.items():
            self._as_agent(name, "playing", agent.transition, env.world)

    @contextmanager
    def _agents_draw_their_own(self) -> Iterator[None]:
        """Let agents have their own generators in a turn that is not Sorrel's."""
        for name, agent in self.agents.items():
            agent.transition = partial(self._as_agent, name, "playing", agent.transition)
        try:
            yield
        finally:
            for agent in self.agents.values():
                del agent.transition

    def _as_agent(self, name: AgentId, doing: str, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return self._own[name].run(function, *arguments)
        except Exception as error:
            error.add_note(str(Place(f"{doing} epoch {self._epoch}", agent=name, step=self.env.turn)))
            raise

    def end(self, epoch: int) -> None:
        """Let agents explore less, and save them where the configuration says so."""
        model = self.env.config.model
        for number, (name, agent) in enumerate(self.agents.items()):
            if hasattr(model, "epsilon_decay"):
                self._as_agent(name, "ending", agent.model.epsilon_decay, model.epsilon_decay)
            if epoch % self.settings.record_period == 0 and getattr(model, "save_weights", False):
                when = datetime.now().astimezone().strftime(_STAMP)
                agent.model.save(self._folder / f"./checkpoints/{when}-agent-{number}.pkl")


def _folder(env: Any, given: Path | None) -> Path:
    """Return the folder of an experiment, which is there then: beside Sorrel itself, if nobody says which."""
    beside = Path(sys.modules["sorrel.environment"].__file__ or "").parent / "./data/"
    folder = Path(given or env.config.experiment.get("output_dir", beside))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
