"""Sorrel's experiment with agents that learn in parallel: an environment as it is, and a `parallel` configuration."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stretto.adapters.sorrel.world import run_faster
from stretto.budget import NativeThreads, default_budget
from stretto.errors import RunsHere, user_stacklevel
from stretto.interop.sorrel_experiment import Experiment
from stretto.interop.sorrel_training import Trainer, TrainStep
from stretto.training.choices import choices_of
from stretto.training.config import config_of
from stretto.workers.backends import PROCESS, SERIAL, THREAD

__all__ = ["ParallelEnvironment"]
__calls_user_code__ = True


class ParallelEnvironment:
    """An environment of Sorrel whose agents learn in parallel; they keep their own models, buffers and hooks.

    `config` is what stands under `parallel` in a configuration of `stretto.train`, or a mapping that has it there. Without
    one it is that of the environment. Not enabled, an experiment is Sorrel's own.

    Enabled, agents take their turns in Sorrel's order. The environment and every agent have private generators, which
    follow from `seed`. So results depend neither on `num_workers` nor on who is faster; they are others than Sorrel's. Agents
    train once whenever `train_interval` epochs are complete. With `async_learning` they do so while the next epochs are
    played, with what they had learned before. A training that takes longer than `limit_seconds` hangs, and is begun again
    in a new process.

    Attributes:
        env: Sorrel's own object, whose attributes are also found here.
        restarts: how many trainings were begun again in the last experiment, because a worker died or hung.
    """

    def __init__(
        self,
        env: Any,
        config: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        limit_seconds: float | None = 600.0,
    ) -> None:
        found: Mapping[str, Any] = env.config if config is None else config
        given = dict(found.get("parallel", {} if config is None else found))
        self.env, self.restarts = env, 0
        self._seed, self._limit = seed, limit_seconds
        self._config = config_of("sorrel", {"parallel": given})
        self._trainer: Trainer | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def pids(self) -> list[int]:
        """The processes that train agents now."""
        return [] if self._trainer is None else self._trainer.pids

    def run_experiment_parallel(
        self, animate: bool = True, logging: bool = True, logger: Any = None, output_dir: Path | None = None
    ) -> None:
        """Run the experiment; the arguments are those of Sorrel's `run_experiment`.

        The loss of an epoch is that of the training which ended with it, or 0.
        """
        if not self._config.parallel.enabled:
            self.env.run_experiment(animate=animate, logging=logging, logger=logger, output_dir=output_dir)
            return
        run_faster()
        experiment = Experiment(self.env, self._seed, output_dir, animate=animate)
        if logging and logger is None:
            from sorrel.utils.logging import ConsoleLogger

            logger = ConsoleLogger(self.env.config.experiment.epochs)
        with NativeThreads(1).capped():
            self._trainer = trainer = self._train(experiment)
            try:
                self._run(experiment, trainer, logger if logging else None)
            finally:
                self.restarts, self._trainer = trainer.restarts, None
                trainer.close()

    def _train(self, experiment: Experiment) -> Trainer:
        choices = choices_of(self._config)
        train, reason = _train_step(experiment)
        backend = {"sequential": SERIAL, "threads": THREAD}.get(choices.learner_set, PROCESS)
        if reason and backend is not SERIAL:
            warnings.warn(RunsHere(f"agents train in the caller's process: {reason}"), stacklevel=user_stacklevel())
            backend = SERIAL
        models = {name: agent.model for name, agent in experiment.agents.items()}
        overlaps = choices.loop == "pipelined"
        free = max(1, default_budget().free - overlaps)  # the caller needs a core to play with
        workers = free if choices.workers is None else choices.workers
        return Trainer(models, train, self._seed, backend, workers, self._limit, overlaps=overlaps)

    def _run(self, experiment: Experiment, trainer: Trainer, logger: Any) -> None:
        interval, overlaps = self._config.parallel.train_interval, trainer.overlaps
        for epoch in range(experiment.settings.epochs + 1):
            experiment.play(epoch)
            losses: list[Any] = []
            if (epoch + 1) % interval == 0:
                losses = trainer.finish() if overlaps else []
                trainer.begin(epoch)
                losses = losses if overlaps else trainer.finish()
            if logger is not None:
                # Sorrel logs the loss of the agent that was trained last.
                loss = losses[-1] if losses else 0
                logger.record_turn(epoch, loss, self.env.world.total_reward, self.env.agents[0].model.epsilon)
            experiment.end(epoch)
        trainer.finish()


def _train_step(experiment: Experiment) -> tuple[TrainStep, str]:
    """Return what trains a model as the environment does; and why it cannot leave this process, if it cannot."""
    env = experiment.env
    plain = sys.modules["sorrel.environment"].Environment
    locked = getattr(sys.modules.get("sorrel.threadsafe.environment"), "ThreadsafeEnvironment", plain)
    step = type(env)._model_train_step  # noqa: SLF001  what Sorrel calls itself
    if step is plain._model_train_step:  # noqa: SLF001
        return _trained, ""
    if step is locked._model_train_step:  # noqa: SLF001
        return _trained_locked, ""
    by_model = {id(agent.model): agent for agent in experiment.agents.values()}
    reason = f"{type(env).__qualname__} has a _model_train_step of its own"
    return lambda model: env._model_train_step(by_model[id(model)]), reason  # noqa: SLF001


def _trained(model: Any) -> Any:
    return model.train_step()


def _trained_locked(model: Any) -> Any:
    return getattr(model, "threadsafe_train_step", model.train_step)()
