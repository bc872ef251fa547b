"""The settings of a run, as frozen dataclasses: each field is a key of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from stretto.policies.networks.limits import Positive, Whole
from stretto.training.learners.bc_settings import BcSettings
from stretto.training.learners.dqn_settings import DqnSettings
from stretto.training.learners.own_settings import OwnSettings, is_own
from stretto.training.learners.ppo_settings import PpoSettings
from stretto.training.learners.sac_settings import SacSettings


@dataclass(frozen=True)
class ParallelSettings:
    """How much of a run is done at once. `train_interval` and `async_learning` apart, none of these changes a result.

    They stand for finer choices; `None` leaves the choice to those. Agents learn after `train_interval` epochs, each of
    which has `rows` rows of every environment.
    """

    enabled: bool = True
    parallel_actions: bool | None = None
    parallel_training: bool | None = None
    async_learning: bool | None = None
    train_interval: Whole = 1
    num_workers: Whole | None = None
    use_threads: bool | None = None


@dataclass(frozen=True)
class EvaluationSettings:
    """After every so many steps, and at the end, agents play `episodes` episodes that training never sees.

    `every: null` is never. They are `greedy`: they take what seems best, and explore nothing.
    """

    every: Whole | None = None
    episodes: Whole = 20
    greedy: bool = True


@dataclass(frozen=True)
class TrialsSettings:
    """Learning to learn: agents play trials, each of so many `episodes` of one task, and keep their memory through a trial.

    They see their last reward (`rewards`) and action (`actions`), and where an episode of a trial begins (`boundaries`). With
    `across`, what later episodes of a trial give counts for decisions in earlier ones: only the last end is an end. Worlds
    that draw tasks (`draw_task`) give `train_tasks` of them to learn from and `eval_tasks` others to be evaluated on.
    """

    episodes: Whole = 1
    rewards: bool = False
    actions: bool = False
    boundaries: bool = False
    across: bool = True
    train_tasks: Whole = 100
    eval_tasks: Whole = 20

    @property
    def shows(self) -> bool:
        """Whether agents see anything of a trial beside what the world shows."""
        return self.rewards or self.actions or self.boundaries


@dataclass(frozen=True)
class CheckpointSettings:
    """After every so many steps, and at the end, a run that has a folder saves all that it is.

    `every: null` is only at the end. The last `keep` checkpoints stay, and the one with the best return.
    """

    every: Whole | None = 100_000
    keep: Whole = 2


@dataclass(frozen=True)
class TrackingSettings:
    """Programs that are told a run's figures: TensorBoard, and Weights & Biases, for which `wandb` names a project."""

    tensorboard: bool = False
    wandb: str | None = None
    wandb_mode: Literal["offline", "online"] = "offline"


@dataclass(frozen=True)
class Config:
    """All that a run depends on beside its world and its seed, and how it is computed.

    `learner` is a name, or `file.py:NAME` or `module:NAME` for a learner of one's own, whose settings are under `own`.
    At most `learners_an_interval` agents learn in an interval; `null`: all of them. `priority` says who comes first:
    `staleness`, those who have waited longest, or where a function is that is given an agent and how many intervals it has
    waited, and returns a number. `block` is how many agents are computed together, `act_rows` how many rows a call has in
    which they act (`auto`: one for each environment), and `native_threads` how many threads a computation has. `device` is
    where networks compute, by torch's name for it; of several, with commas between them, each block has the next one.
    `loop: pipelined` collects an interval while agents learn from the one before; `free` does so in no fixed order, with
    learning at most `most_lag` intervals behind. Learners that take longer than
    `learner_seconds` for an interval hang, and do it again in a new process; `null` waits for ever. If one raises, the run
    stops; with `on_failure: freeze` its agents act on with what they have learned, and the others go on.
    """

    learner: str = "ppo"
    preset: str | None = "auto"
    steps: Whole = 100_000
    num_envs: Whole = 8
    ppo: PpoSettings = field(default_factory=PpoSettings)
    dqn: DqnSettings = field(default_factory=DqnSettings)
    sac: SacSettings = field(default_factory=SacSettings)
    bc: BcSettings = field(default_factory=BcSettings)
    own: OwnSettings = field(default_factory=OwnSettings)
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    trials: TrialsSettings = field(default_factory=TrialsSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    turns: Literal["auto", "simultaneous", "sequential", "speculative"] | None = None
    learner_set: Literal["auto", "sequential", "stacked", "threads", "processes"] | None = None
    loop: Literal["sync", "pipelined", "free"] | None = None
    most_lag: Annotated[int, Ge(1), Le(32)] = 2
    learners_an_interval: Whole | None = None
    priority: str = "staleness"
    block: Whole = 8
    act_rows: Whole | Literal["auto"] = "auto"
    native_threads: Whole = 1
    learner_seconds: Positive | None = 600.0
    on_failure: Literal["stop", "freeze"] = "stop"
    device: str = "cpu"

    @property
    def settings(self) -> Any:
        """The settings of the learner."""
        return self.own if is_own(self.learner) else getattr(self, self.learner)
