"""What every backend of a vector environment must keep."""

from __future__ import annotations

import copy
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from stretto.envs.make import make_vec
from stretto.errors import ClosedError, InvalidAction, ResetNeeded
from stretto.missions.resolve import makers
from stretto.spaces import same_space
from stretto.testing.runs import Run, is_single, play, sample_actions
from stretto.testing.values import ContractBroken, check_same, require

Make = Callable[..., Any]


def check_env_backend(id_or_factory: Any, num_envs: int = 3, *, steps: int = 40, seed: int = 7, **options: Any) -> None:
    """Check that `make_vec(id_or_factory, num_envs, **options)` keeps all that a vector environment promises.

    `options` name a backend, a transport, a number of workers: whatever is to be checked. The worlds are played for
    `steps` vector steps with random actions; choose so many that episodes end.

    Raises:
        ContractBroken: with the first promise that is not kept, and where.
    """

    def make(**more: Any) -> Any:
        return make_vec(id_or_factory, num_envs, **{**options, **more})

    for mode in AutoresetMode:
        _equals_the_serial_backend(make, mode, steps, seed)
    for check in (_repeats_itself, _views_stay_for_one_step, _receives_what_was_sent, _survives_a_kill):
        check(make, steps, seed)
    for brief_check in (_copies_stay, _resets_by_mask, _refuses_bad_actions, _ends_in_order):
        brief_check(make, seed)


def check_equals_gymnasium(
    id_or_factory: Any,
    num_envs: int = 3,
    *,
    steps: int = 40,
    seed: int = 7,
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    **options: Any,
) -> Run:
    """Check that every step gives what Gymnasium's `SyncVectorEnv` gives, to the last bit, and return the run.

    Observations, rewards, flags and infos are compared, with their masks, types and the order of their keys. Worlds
    that draw from global generators are not comparable: Gymnasium lets all slots draw from the same ones.
    """
    # The worlds that Gymnasium steps are made as ours are, so that nothing but the stepping differs.
    made = makers(id_or_factory, num_envs, options.get("env_kwargs"), options.get("wrappers", ()))
    theirs = SyncVectorEnv(made, autoreset_mode=autoreset_mode)
    try:
        actions = sample_actions(theirs, steps, seed)
        expected = play(theirs, actions, seed)
    finally:
        theirs.close()
    with make_vec(id_or_factory, num_envs, autoreset_mode=autoreset_mode, **options) as ours:
        for name in ("observation_space", "action_space"):
            one, other = getattr(ours, name), getattr(theirs, name)
            require(same_space(one, other), f"the batched {name} is {one} in ours and {other} in Gymnasium's")
        run = play(ours, actions, seed)
    run.check_same(expected, f"ours and Gymnasium's ({autoreset_mode.value})")
    return run


def _equals_the_serial_backend(make: Make, mode: AutoresetMode, steps: int, seed: int) -> None:
    alone = {"backend": "serial", "workers": None, "isolate": False, "transport": "shared"}
    with make(autoreset_mode=mode, **alone) as plain:
        actions = sample_actions(plain, steps, seed)
        expected = play(plain, actions, seed)
    with make(autoreset_mode=mode) as envs:
        play(envs, actions, seed).check_same(expected, f"this backend and the serial one ({mode.value})")


def _repeats_itself(make: Make, steps: int, seed: int) -> None:
    with make() as envs:
        actions = sample_actions(envs, steps, seed)
        first, again = play(envs, actions, seed), play(envs, actions, seed)
    first.check_same(again, "two runs with the same seed")


def _copies_stay(make: Make, seed: int) -> None:
    with make() as envs:
        envs.reset(seed=seed)
        given, kept = [], []
        for action in sample_actions(envs, 8, seed):
            given.append(envs.step(action))
            kept.append(copy.deepcopy(given[-1]))
        check_same(given, kept, "arrays that were returned changed later, though copy=True")


def _views_stay_for_one_step(make: Make, steps: int, seed: int) -> None:
    with make() as envs:
        actions = sample_actions(envs, steps, seed)
        expected = play(envs, actions, seed)
    with make(copy=False) as envs:
        last, _ = envs.reset(seed=seed)
        for number, action in enumerate(actions):
            step = envs.step(action)
            check_same(last, expected.moments[number][0], f"a view changed within one step, before step {number + 1}")
            check_same(tuple(step), expected.moments[number + 1][:5], f"copy=False changed step {number + 1}")
            last = step.observations


def _resets_by_mask(make: Make, seed: int) -> None:
    with make() as envs:
        if envs.num_envs < 2:
            return
        mask = np.arange(envs.num_envs) % 2 == 0
        moments = play(envs, sample_actions(envs, 3, seed), seed).moments
        after, _ = envs.reset(seed=seed, options={"reset_mask": mask})
        for slot in range(envs.num_envs):
            wanted = _row(envs, moments[0 if mask[slot] else -1][0], slot)
            which = f"after a masked reset, slot {slot} ({'was' if mask[slot] else 'was not'} to be reset)"
            check_same(_row(envs, after, slot), wanted, which)


def _row(envs: Any, batch: Any, slot: int) -> Any:
    """Take one slot's part out of a batch."""
    if isinstance(batch, dict):
        return {key: _row(envs, part, slot) for key, part in batch.items()}
    if isinstance(batch, tuple) and len(batch) != envs.num_envs:
        return tuple(_row(envs, part, slot) for part in batch)
    return batch[slot]


def _refuses_bad_actions(make: Make, seed: int) -> None:
    with make() as envs:
        actions = sample_actions(envs, 4, seed)
        expected = play(envs, actions, seed)
        refused = []

        def try_nonsense(_: int) -> None:
            try:
                envs.step("nonsense" if is_single(envs) else {"nobody": 0})
            except InvalidAction:
                refused.append(True)

        run = play(envs, actions, seed, before_step=try_nonsense)
        require(len(refused) == len(actions), "an action that is none must be refused with InvalidAction")
        run.check_same(expected, "a run and the same one with refused actions in between")


def _receives_what_was_sent(make: Make, steps: int, seed: int) -> None:
    with make() as envs:
        if not is_single(envs):
            return
        actions = sample_actions(envs, steps, seed)
        expected = play(envs, actions, seed)
        envs.reset(seed=seed)
        for number, action in enumerate(actions):
            envs.send(action)
            received = envs.recv(ordered=True)
            parts = f"send() and recv() part from step() at step {number + 1}"
            check_same(tuple(received[:5]), expected.moments[number + 1][:5], parts)


def _survives_a_kill(make: Make, steps: int, seed: int) -> None:
    with make() as envs:
        if not envs.worker_pids:
            return
        actions = sample_actions(envs, steps, seed)
        expected = play(envs, actions, seed)
        moments = itertools.count()

        def kill_now_and_then(_: int) -> None:
            number = next(moments)
            if number % 13 == 5:
                os.kill(envs.worker_pids[number % len(envs.worker_pids)], signal.SIGKILL)

        run = play(envs, actions, seed, before_step=kill_now_and_then)
        run.check_same(expected, "an undisturbed run and one whose workers were killed")
        require(steps < 6 or envs.statistics().restarts > 0, "a killed worker must be counted as restarted")


def _ends_in_order(make: Make, seed: int) -> None:
    envs = make()
    try:
        action = sample_actions(envs, 1, seed)[0]
        _must_raise(ResetNeeded, lambda: envs.step(action), "step() before reset()")
        envs.reset(seed=seed)
        pids = envs.worker_pids
        envs.close()
        envs.close()
        _must_raise(ClosedError, lambda: envs.step(action), "step() after close()")
        _must_raise(ClosedError, lambda: envs.reset(seed=seed), "reset() after close()")
        require(envs.worker_pids == [], "a closed vector environment must have no workers")
        require(not any(map(_runs, pids)), "close() must return only when every worker process has ended")
    finally:
        envs.close()


def _must_raise(kind: type[Exception], call: Callable[[], object], what: str) -> None:
    try:
        call()
    except kind:
        return
    raise ContractBroken(f"{what} must raise {kind.__name__}, and raised nothing")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
