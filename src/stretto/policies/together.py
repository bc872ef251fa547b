"""Together: agents of several episodes that are asked at once, step after step, with little around each choice."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core import Action, AgentId, EpisodeKey, Outcome
from stretto.ownership import taken_over
from stretto.policies.questions import Runner, Team

__calls_user_code__ = True


class AskedTogether:
    """Asks a runner for all who act, where it answers them at once. Who is asked with whom is found out when that changes.

    A question for each agent, and how long each takes, are left out: in batches of 16 that is 1 µs an agent.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._episodes: Sequence[EpisodeKey] = ()
        self._acting: list[tuple[AgentId, ...]] = []
        self._team: Team | None = None

    def choose(self, episodes: Sequence[EpisodeKey], outcomes: Sequence[Outcome]) -> list[dict[AgentId, Action]] | None:
        """Return what agents do in each episode; `None` where they are asked in another way.

        Each gets an observation of its own (see `taken_over`).
        """
        acting = [outcome.acting for outcome in outcomes]
        if acting != self._acting or episodes != self._episodes:
            self._episodes, self._acting = episodes, acting
            everybody = zip(episodes, acting, strict=True)
            self._team = self._runner.team([(episode, agent) for episode, agents in everybody for agent in agents])
        if self._team is None:
            return None
        seen = [taken_over(outcome.observations, agent) for outcome in outcomes for agent in outcome.acting]
        actions = iter(self._team(seen))
        return [dict(zip(agents, actions)) for agents in acting]  # noqa: B905  all take their own from one iterator
