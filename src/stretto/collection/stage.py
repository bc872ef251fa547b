"""BlockStage: worlds and policies by blocks, on which trials are played and written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from stretto.collection.experience import Experience, Rollout, Segment
from stretto.collection.recorder import Recorder
from stretto.collection.tasks import Trial
from stretto.collection.trial_log import TrialLog
from stretto.core import AgentId, BlockAnswer, NextEpisode
from stretto.policies.ahead import NOT_COUNTED
from stretto.policies.questions import AgentEpisode, Block, Remembering, Runner
from stretto.policies.states import map_state
from stretto.rollout import Advance, Slots
from stretto.run_trace import traced_worlds
from stretto.spaces import Array, map_space

if TYPE_CHECKING:
    from stretto.collection.worlds import BlockWorlds


class _Playing:
    """What a slot plays: a trial, an episode of it, and the rows that hold the last observations of those before."""

    __slots__ = ("ends", "episode", "trial")

    def __init__(self, trial: Trial, episode: int = 0) -> None:
        self.trial, self.episode = trial, episode
        self.ends: list[int] = []


class BlockStage:
    """Plays a trial in each slot. It gives back rollouts, or, with a `horizon`, segments of so many rows of every slot.

    A slot whose episode is over is told what to play next, and begins it in its next step, while the others go on. One
    that has nothing to play is idle. `steps` counts the steps of worlds, and `seconds` is the time that policies and worlds
    took, with what it takes to write it all down. With a `log` its `state` can be saved between two segments.
    """

    def __init__(
        self,
        worlds: BlockWorlds,
        runner: Runner,
        policies: Mapping[AgentId, int],
        horizon: int | None = None,
        log: TrialLog | None = None,
    ) -> None:
        self.count, self.steps = worlds.count, 0
        self.advances, self.seconds, self.policy_seconds = 0, 0.0, 0.0
        self.counted = NOT_COUNTED
        self._worlds, self._runner, self._policies, self._horizon, self._log = worlds, runner, policies, horizon, log
        self._playing: dict[int, _Playing] = {}
        self._trials = np.zeros(worlds.count, np.int64)
        self._beginning = np.zeros(worlds.count, np.bool_)  # the slot's next step is a reset
        self._unwritten = np.zeros(worlds.count, np.bool_)  # and has no row: the last observation has one already
        self._vacant = set(range(worlds.count))  # slots that have nothing to play
        self._idle: set[int] = set()
        self._held: list[int] = []  # slots that have all rows of the segment
        self._waiting: Array = np.zeros(0, np.intp)  # slots that could do a step, and wait for others
        self._coming: BlockWorlds | None = None
        self._recorder = Recorder(worlds.kinds, worlds.count)
        self._parties = [_parties(kind.agents, policies) for kind in worlds.kinds]

    def advance(self, begun: Mapping[int, Trial], ready: Slots) -> Advance[list[Any]]:
        """Begin trials in some slots, and let those that are `ready` do a step; return what is whole."""
        for slot, trial in begun.items():
            self._playing[slot], self._trials[slot] = _Playing(trial), trial.index
            self._runner.begin(self._agents(trial))
            if self._log is not None:
                self._log.begin(slot, int(self._recorder.rows[slot]) + self._worlds.started)
        self._vacant -= begun.keys()
        if not self._worlds.started:
            # Where there are fewer trials than slots the others begin as well, since all must, and are idle after that.
            # They begin one of these trials: a world may need a task.
            spare = next(iter(begun.values())).episode(0)
            self._worlds.reset({slot: begun[slot].episode(0) if slot in begun else spare for slot in range(self.count)})
        elif begun:
            self._begin({slot: trial.episode(0) for slot, trial in begun.items()})
            # A slot that was idle is reset at once: its next step is one of the trial, and has a row.
            self._unwritten[list(begun)] = self._beginning[list(begun)] & (self._horizon is None)
        if idle := self._vacant - self._idle:
            self._worlds.begin_next(dict.fromkeys(idle, NextEpisode(idle=True)))
            self._idle |= idle
        began = time.perf_counter()
        going = np.asarray(ready, np.intp)
        if begun:
            going = np.sort(np.concatenate([going, np.array(list(begun), np.intp)]))
        if self._horizon is not None:
            whole = self._recorder.rows[going] == self._horizon
            self._held += going[whole].tolist()
            going = going[~whole]
        done = self._settle(self._exchange(self._choose(going)))
        self.advances += 1
        self.seconds += time.perf_counter() - began
        return done

    def _choose(self, ready: Array) -> Array:
        """Return which of the slots that could do a step do it now; the others wait."""
        if len(self._waiting):
            ready = np.sort(np.concatenate([self._waiting, ready]))
        if self._coming is not None and len(ready) == len(self._playing):
            self._coming.take_over(self._worlds)
            self._worlds, self._coming = traced_worlds(self._coming), None
        going = self._worlds.choose(ready, ~self._beginning[ready], self._trials[ready])
        self._waiting = np.setdiff1d(ready, going) if len(going) < len(ready) else ready[:0]
        return going

    def use(self, worlds: BlockWorlds) -> None:
        """Wait in another way as soon as no slot is being stepped, with other `worlds` of the same environments."""
        self._coming = worlds

    def _begin(self, episodes: Mapping[int, NextEpisode]) -> None:
        """Let slots play something next: in their next step if an episode has just ended there, else by a reset."""
        over = {slot: episode for slot, episode in episodes.items() if slot not in self._idle}
        rest = {slot: episode for slot, episode in episodes.items() if slot in self._idle}
        if over:
            self._worlds.begin_next(over)
            self._beginning[list(over)] = True
        if rest:
            self._worlds.reset(rest)
            self._idle -= rest.keys()

    def _agents(self, trial: Trial) -> list[AgentEpisode]:
        tree, count = trial.tree.child("policy"), len(self._policies)
        return [
            AgentEpisode(trial.index, agent, policy, tree.child(agent), trial.index * count + j)
            for j, (agent, policy) in enumerate(self._policies.items())
        ]

    def _exchange(self, slots: Array) -> Array:
        """Let agents act in `slots`, write that down and step the worlds; return the slots that have done their step."""
        worlds, recorder = self._worlds, self._recorder
        beginning = self._beginning[slots]
        acting = slots[~beginning] if beginning.any() else slots
        ended = slots[beginning & ~self._unwritten[slots]]
        actions = []
        for k, (kind, record) in enumerate(zip(worlds.kinds, recorder.kinds, strict=True)):
            rows = worlds.rows[k]
            if len(ended):
                record.end(recorder.rows[ended], ended, some_of(kind.observation_space, rows.observations, ended))
            if len(acting):
                everyone = len(acting) == self.count
                seen = rows.observations if everyone else some_of(kind.observation_space, rows.observations, acting)
                can_act = rows.acting[acting]
                began = time.perf_counter()
                answer = self._act(k, acting, seen, can_act)
                self.policy_seconds += time.perf_counter() - began
                record.act(recorder.rows[acting], acting, seen, can_act, answer.actions, answer.says)
                actions.append(answer.actions)
        return worlds.exchange(slots, acting, actions)

    def _act(self, k: int, slots: Array, observations: Any, acting: Array) -> BlockAnswer:
        """Return what the agents of a kind do in `slots`."""
        kind, trials = self._worlds.kinds[k], self._trials[slots].tolist()
        answers = []
        for policy, columns in self._parties[k]:
            whole = len(columns) == len(kind.agents)
            seen = observations if whole else columns_of(kind.observation_space, observations, columns)
            agents = [kind.agents[j] for j in columns]
            answers.append(self._runner.act_block(Block(policy, trials, agents, seen, acting[:, columns])))
        if len(answers) == 1:
            only: BlockAnswer = answers[0]
            return only
        order = np.argsort([j for _, columns in self._parties[k] for j in columns])
        joined: BlockAnswer = map_state(lambda *parts: np.concatenate(parts, axis=1)[:, order], *answers)
        return joined

    def _settle(self, back: Array) -> Advance[list[Any]]:
        """Write down what slots were given that have done their step; see which trials are over."""
        worlds, recorder = self._worlds, self._recorder
        began = self._beginning[back]
        acted = back[~began] if began.any() else back
        written = back[~self._unwritten[back]] if began.any() else back
        self._beginning[back] = self._unwritten[back] = False
        whole_rows = self._completed(acted)
        if len(whole_rows) < len(acted):
            under_way = np.zeros(self.count, np.bool_)
            under_way[acted], under_way[whole_rows] = True, False
            written, acted = written[~under_way[written]], whole_rows
        for k, record in enumerate(recorder.kinds):
            record.give(recorder.rows[acted], acted, worlds.rows[k])
        recorder.advance(written)
        self.steps += len(acted)
        whole: list[Any] = []
        free, following = [], {}
        for slot in acted[worlds.over[acted]].tolist():
            playing = self._playing[slot]
            playing.ends.append(int(recorder.rows[slot]))
            playing.episode += 1
            if playing.episode < playing.trial.episodes:
                following[slot] = playing.trial.episode(playing.episode)
                continue
            if self._horizon is None:
                whole.append(self._rollout(slot, playing))
            self._runner.end(playing.trial.index)
            del self._playing[slot]
            free.append(slot)
        if following:
            self._begin(following)
        ready = back
        if free:
            self._vacant.update(free)
            ready = np.array([slot for slot in back.tolist() if slot in self._playing], np.intp)
        if self._horizon is not None and (recorder.rows == self._horizon).all():
            whole.append(self._segment())
            # Sorted: where all of them act, batches have the order of the slots.
            ready, self._held = np.sort(np.concatenate([ready, np.array(self._held, np.intp)])), []
        return Advance(whole, ready, free)

    def _completed(self, acted: Array) -> Array:
        """Return which of the slots that have done a step have a row by that: here all of them."""
        return acted

    def _rollout(self, slot: int, playing: _Playing) -> Rollout:
        recorder, at = self._recorder, np.array([slot])
        count = int(recorder.rows[slot])
        kinds = []
        for k, (kind, record) in enumerate(zip(self._worlds.kinds, recorder.kinds, strict=True)):
            record.end(at * 0 + count, at, some_of(kind.observation_space, self._worlds.rows[k].observations, at))
            kinds.append(Experience(kind.agents, **record.take(count + 1, slot)))
        recorder.rows[slot] = 0
        trial = playing.trial
        return Rollout(trial.index, trial.seed, trial.task, tuple(playing.ends), tuple(kinds))

    def _segment(self) -> Segment:
        recorder, horizon = self._recorder, self._horizon
        assert horizon is not None
        kinds = tuple(
            Experience(kind.agents, **record.take(horizon))
            for kind, record in zip(self._worlds.kinds, recorder.kinds, strict=True)
        )
        recorder.rows[:] = 0
        if self._log is not None:
            acted = np.logical_or.reduce([kind.acted.any(2) for kind in kinds])
            self._log.add(
                self._worlds.actions_by_leaf([kind.actions for kind in kinds], [kind.acted for kind in kinds]), acted
            )
        following = [
            map_space(lambda _, part: np.array(part), kind.observation_space, rows.observations)
            for kind, rows in zip(self._worlds.kinds, self._worlds.rows, strict=True)
        ]
        return Segment(kinds, tuple(following), self._trials.copy(), self._worlds.by_turn)

    def state(self) -> dict[str, Any]:
        """Return where all slots are, between two segments."""
        assert self._log is not None
        runner = cast(Remembering, self._runner)
        playing = [self._playing.get(slot) for slot in range(self.count)]
        return {
            "trials": self._trials.copy(),
            "episodes": np.array([-1 if one is None else one.episode for one in playing], np.int64),
            "steps": self.steps,
            "rows": self._worlds.state(),
            "log": self._log.state(),
            "memory": runner.memory([one.trial.index for one in playing if one is not None]),
        }

    def restore(self, state: Mapping[str, Any], trial: Callable[[int], Trial]) -> list[int]:
        """Go on from what `state` has returned, with new worlds and runners; return the slots that play something."""
        assert self._log is not None
        runner = cast(Remembering, self._runner)
        self.steps, self._trials[:] = state["steps"], state["trials"]
        self._log.load_state(state["log"])
        pasts = []
        for slot, episode in enumerate(state["episodes"].tolist()):
            played = trial(int(self._trials[slot]))
            pasts.append(self._log.past(slot, played, None if episode < 0 else episode))
            if episode >= 0:
                self._playing[slot] = _Playing(played, episode)
                runner.begin(self._agents(played))
        self._vacant -= self._playing.keys()
        self._worlds.restore(pasts, state["rows"])
        playing = sorted(self._playing)
        self._beginning[playing] = self._worlds.over[playing]
        runner.remember([self._playing[slot].trial.index for slot in playing], state["memory"])
        return playing

    def close(self) -> None:
        """Let go of worlds and policies; may be called twice."""
        self._runner.close()
        self._worlds.close()


def _parties(agents: Sequence[AgentId], policies: Mapping[AgentId, int]) -> list[tuple[int, list[int]]]:
    """Return which policies agents of a kind follow, each with the columns of those who follow it."""
    parties: dict[int, list[int]] = {}
    for j, agent in enumerate(agents):
        parties.setdefault(policies[agent], []).append(j)
    return list(parties.items())


def some_of(space: Any, batch: Any, slots: Array) -> Any:
    """Return some rows of a batch, copied."""
    return map_space(
        lambda _, part: part[slots] if isinstance(part, np.ndarray) else [part[s] for s in slots], space, batch
    )


def columns_of(space: Any, batch: Any, columns: list[int]) -> Any:
    """Return the columns of some agents of a batch, copied."""

    def chosen(_: Any, part: Any) -> Any:
        return part[:, columns] if isinstance(part, np.ndarray) else [[row[j] for j in columns] for row in part]

    return map_space(chosen, space, batch)
