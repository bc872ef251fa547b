"""VectorEnv: many environments behind Gymnasium's vector API, and beyond it `send`/`recv` and `map`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from stretto import trace
from stretto.envs.calls import WorldCalls
from stretto.envs.infos import by_slot
from stretto.envs.messages import Built
from stretto.envs.slots import Options
from stretto.errors import UsageError
from stretto.spaces import Array

if TYPE_CHECKING:
    from stretto.envs.engine import Engine


class StepResult(NamedTuple):
    """What a step of all environments gives."""

    observations: Any
    rewards: Any
    terminations: Any
    truncations: Any
    infos: dict[str, Any]


class ReadyResult(NamedTuple):
    """What `recv` gives: a row for each of `ids`, the environments that were ready."""

    observations: Any
    rewards: Any
    terminations: Any
    truncations: Any
    infos: dict[str, Any]
    ids: Array


class VectorEnv(WorldCalls, gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Environments stepped by workers, one of which is the caller unless they are isolated.

    Use `stretto.make_vec`. What Gymnasium's `SyncVectorEnv` promises holds here; results are the same for every
    backend, transport and number of workers. With `copy=False` arrays are views: they stay as they are through one
    more step and are overwritten by the second; read them, never write into them.
    """

    def __init__(self, engine: Engine, built: Built, mode: AutoresetMode, *, copy: bool, choice: str) -> None:
        super().__init__(engine, built, mode, copy=copy, choice=choice)
        self.spec = built.spec
        self.single_observation_space = built.observation_space
        self.single_action_space = built.action_space
        self.observation_space = built.observation_batch or batch_space(built.observation_space, self.num_envs)
        self.action_space = batch_space(built.action_space, self.num_envs)
        self._steps_each = engine.steps_each and bool(self._gate.choices)

    # ---- Gymnasium's API ----

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Options = None,
        reset_mask: Array | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those where `reset_mask` is true, and return the batch.

        `seed=int` gives slot *i* the seed `seed + i`; a sequence gives each slot its own, and likewise for options. The
        mask may also be in the options, as Gymnasium has it, where these are one dict for all.
        Slots can be reset while others are in flight; the rows of these in the batch mean nothing.
        After a failure this is how to go on: workers that were given up are started anew.
        """
        slots, options = chosen_slots(options, reset_mask, self.num_envs)
        with self._engine.alone:
            infos = self._engine.reset(slot_seeds(seed, self.num_envs), options, slots)
            if self._engine.flying:
                return self._engine.state.gather(self._engine.everyone)[0], infos
            return self._observations(), infos

    def step(self, actions: Any) -> StepResult:
        """Step every environment and return the batch of what they gave."""
        tracing = trace.active
        began = 0 if tracing is None else time.monotonic_ns()
        engine = self._engine
        alone = engine.alone
        if not alone.acquire(False):
            alone.refuse()
        try:
            engine.check_steppable()
            if self._steps_each:
                result = self._result(engine.step_each(self._gate.admit_each(actions, engine.everyone)))
            elif engine.hands_over:
                admitted = self._gate.admit(actions, engine.everyone)
                result = tuple.__new__(StepResult, engine.step_here(admitted))
            else:
                result = self._result(engine.step(self._gate.admit(actions, engine.everyone)))
        finally:
            alone.release()
        if tracing is not None:
            tracing.add("step", began)
        return result

    def _result(self, infos: dict[str, Any]) -> StepResult:
        """Return the rows of all environments."""
        state = self._engine.state
        buffer, b = state.buffer, state.buffers
        rewards, terminated, truncated = b.rewards[buffer], b.terminated[buffer], b.truncated[buffer]
        # Nothing is called here that need not be: this stands in every step. `tuple.__new__` is what StepResult(...) does.
        observations = b.observations[buffer][0].copy() if self._small else self._observations()
        if self._copy:
            rewards, terminated, truncated = rewards.copy(), terminated.copy(), truncated.copy()
        return tuple.__new__(StepResult, (observations, rewards, terminated, truncated, infos))

    def step_async(self, actions: Any) -> None:
        """Let every environment step, and return at once; `step_wait` gives the result, which is that of `step`.

        The first call moves the caller's own share of the environments into a worker, as with `send`. Where there is no
        other worker the steps are done in `step_wait`.
        """
        with self._engine.alone:
            self._engine.check_steppable()
            self._engine.begin_step(self._gate.admit(actions, self._engine.everyone))

    def step_wait(self) -> StepResult:
        """Wait for the step that `step_async` has begun, and return the batch."""
        with self._engine.alone:
            return self._result(self._engine.end_step())

    def close_extras(self, **kwargs: Any) -> None:
        """End the workers and give back their memory."""
        self._finalizer.detach()
        self._engine.close()

    @property  # type: ignore[misc]  # Gymnasium's can be set; there is no single generator here
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The environments' own generators."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the environments' own generators."""
        return self.get_attr("np_random_seed")

    # ---- beyond it ----

    def send(self, actions: Any, ids: Sequence[int] | Array | None = None) -> None:
        """Let some environments (default: all) step, and return at once; `recv` gives the results.

        The first call moves the caller's own share of the environments into a worker, so that the caller stays free.
        With the serial backend there is no other worker: the steps are done in `recv`.
        """
        with self._engine.alone:
            slots = self._engine.check_ids(ids)
            self._engine.send(self._gate.admit(actions, slots), slots)

    def recv(self, ready: int | None = None, *, ordered: bool = False) -> ReadyResult:
        """Return the steps of the first `ready` environments to finish (default: all that were sent).

        `ordered=True` takes them in the order of sending instead, which makes the results reproducible. The arrays
        are copies; infos are batched by row.

        Raises:
            WorkerDied: if a worker exited and could not be recovered.
        """
        with self._engine.alone:
            slots, infos = self._engine.recv(ready, ordered)
            observations, rewards, terminated, truncated = self._engine.state.gather(slots)
        return ReadyResult(observations, rewards, terminated, truncated, infos, np.array(slots, np.int64))

    def separate_infos(self) -> None:
        """From now on, give the infos of `reset` and `step` as a list for each slot, just as the environments gave them.

        Batched as Gymnasium does it, they lose what does not fit the type of the first value under a key. A slot has
        two where one episode ended (`final_obs`, `final_info`) and the next began.
        """
        self._engine.join_infos = by_slot


def slot_seeds(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Return the seed of each slot."""
    if seed is None:
        return [None] * count
    given: Any = [int(seed) + i for i in range(count)] if isinstance(seed, (int, np.integer)) else seed
    if not isinstance(given, (list, tuple, range, np.ndarray)) or len(given) != count:
        raise UsageError(f"a seed must be one integer, or one for each of the {count} environments, got {seed!r}")
    for one in given:
        if one is not None and (not isinstance(one, (int, np.integer)) or one < 0):
            raise UsageError(f"seeds must be integers of at least 0, or None, got {one!r}")
    return [None if one is None else int(one) for one in given]


def chosen_slots(options: Options, mask: Array | None, count: int) -> tuple[list[int], Options]:
    """Return the slots that the mask, or `options["reset_mask"]`, chooses, and the options without it."""
    if options is not None and not isinstance(options, dict) and len(options) != count:
        raise UsageError(f"options must be one for each of the {count} environments, got {len(options)}")
    if isinstance(options, dict) and "reset_mask" in options:
        if mask is not None:
            raise UsageError("reset_mask must be given once, got one beside the options and one in them")
        mask, options = options["reset_mask"], {key: options[key] for key in options if key != "reset_mask"}
    elif mask is None:
        return list(range(count)), options
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (count,) or not mask.any():
        raise UsageError(f"reset_mask must be an array of {count} booleans with at least one True, got {mask!r}")
    return np.flatnonzero(mask).tolist(), options
