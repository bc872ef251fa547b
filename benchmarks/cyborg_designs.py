"""Ways to step many environments of CAGE challenge 2 (CybORG): the contestants of cyborg.py, each in a process of its own.

Three of them are the designs that people have built around it: a process and a pipe for each environment; a process for
each, with arrays in shared memory and queues for the rest; a list in one process. None of them sends infos.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium import spaces
from hosts import serve
from memory import used_bytes

BITS, ACTIONS, SEED = 52, 145, 7
DIGEST_STEPS = 25


def challenge() -> tuple[Any, Any]:
    """Return the challenge as its own evaluation makes it: CybORG's object, and the wrapper around that."""
    import inspect
    from pathlib import Path

    from CybORG import CybORG
    from CybORG.Agents import B_lineAgent
    from CybORG.Agents.Wrappers import ChallengeWrapper

    scenario = Path(inspect.getfile(CybORG)).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
    cyborg = CybORG(str(scenario), "sim", agents={"Red": B_lineAgent})
    return cyborg, ChallengeWrapper(env=cyborg, agent_name="Blue")


class InProcess:
    """A list of environments, stepped one after the other. They all draw from one global generator."""

    def __init__(self, count: int) -> None:
        self.made = [challenge() for _ in range(count)]

    def reset(self, seed: int) -> Any:
        self.made[0][0].set_seed(seed)
        return np.stack([env.reset() for _, env in self.made])

    def step(self, actions: Any) -> tuple[Any, Any]:
        steps = [env.step(int(action)) for (_, env), action in zip(self.made, actions, strict=True)]
        return np.stack([one[0] for one in steps]), np.array([one[1] for one in steps])

    def true_states(self) -> Any:
        return [cyborg.get_agent_state("True") for cyborg, _ in self.made]

    def close(self) -> None:
        pass


def serve_pipe(pipe: Any) -> None:
    cyborg, env = challenge()
    while True:
        command, value = pipe.recv()
        if command == "reset":
            cyborg.set_seed(value)
            pipe.send(env.reset())
        elif command == "step":
            observation, reward, done, _ = env.step(int(value))
            pipe.send((observation, reward, done, {}))
        elif command == "true":
            pipe.send(cyborg.get_agent_state("True"))
        else:
            return


class Pipes:
    """A process and a pipe for each environment."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("fork")
        self.pipes, self.processes = [], []
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=serve_pipe, args=(there,), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def ask(self, command: str, values: Any) -> list[Any]:
        for pipe, value in zip(self.pipes, values, strict=True):
            pipe.send((command, value))
        return [pipe.recv() for pipe in self.pipes]

    def reset(self, seed: int) -> Any:
        return np.stack(self.ask("reset", range(seed, seed + len(self.pipes))))

    def step(self, actions: Any) -> tuple[Any, Any]:
        steps = self.ask("step", actions.tolist())
        return np.stack([one[0] for one in steps]), np.array([one[1] for one in steps])

    def true_states(self) -> Any:
        return self.ask("true", [None] * len(self.pipes))

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(("close", None))
        for process in self.processes:
            process.join(10)


def serve_shared(name: str, count: int, slot: int, commands: Any, answers: Any) -> None:
    memory = SharedMemory(name)
    observations, rewards = arrays(memory, count)
    cyborg, env = challenge()
    while True:
        command, value = commands.get()
        if command == "reset":
            cyborg.set_seed(value)
            observations[slot] = env.reset()
            answers.put((slot, None))
        elif command == "step":
            observations[slot], rewards[slot], *_ = env.step(int(value))
            answers.put((slot, {}))
        elif command == "true":
            answers.put((slot, cyborg.get_agent_state("True")))
        else:
            del observations, rewards
            memory.close()
            return


def arrays(memory: SharedMemory, count: int) -> tuple[Any, Any]:
    seen = np.ndarray((count, BITS), np.float64, memory.buf)
    return seen, np.ndarray((count,), np.float64, memory.buf, offset=seen.nbytes)


class Shared:
    """A process for each environment, with arrays in shared memory, and queues for commands and infos."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("fork")
        self.count = count
        self.memory = SharedMemory(create=True, size=8 * count * (BITS + 1))
        self.observations, self.rewards = arrays(self.memory, count)
        self.answers: Any = context.Queue()
        self.commands = [context.Queue() for _ in range(count)]
        self.processes = [
            context.Process(
                target=serve_shared, args=(self.memory.name, count, slot, commands, self.answers), daemon=True
            )
            for slot, commands in enumerate(self.commands)
        ]
        for process in self.processes:
            process.start()

    def ask(self, command: str, values: Any) -> list[Any]:
        for commands, value in zip(self.commands, values, strict=True):
            commands.put((command, value))
        found: list[Any] = [None] * self.count
        for _ in range(self.count):
            slot, found_here = self.answers.get()
            found[slot] = found_here
        return found

    def reset(self, seed: int) -> Any:
        self.ask("reset", range(seed, seed + self.count))
        return self.observations.copy()

    def step(self, actions: Any) -> tuple[Any, Any]:
        self.ask("step", actions.tolist())
        return self.observations.copy(), self.rewards.copy()

    def true_states(self) -> Any:
        return self.ask("true", [None] * self.count)

    def close(self) -> None:
        for commands in self.commands:
            commands.put(("close", None))
        for process in self.processes:
            process.join(10)
        del self.observations, self.rewards
        self.memory.close()
        self.memory.unlink()


class Challenge(gymnasium.Env[Any, Any]):
    """The challenge's wrapper as Gymnasium wants it."""

    def __init__(self) -> None:
        self.cyborg, self.env = challenge()
        self.observation_space = spaces.Box(-1, 1, (BITS,), np.float32)
        self.action_space = spaces.Discrete(ACTIONS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.cyborg.set_seed(seed)
        return self.env.reset().astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, done, _ = self.env.step(int(action))
        return observation.astype(np.float32), reward, done, False, {}

    def true_state(self) -> Any:
        return self.cyborg.get_agent_state("True")


class Async:
    """Gymnasium's AsyncVectorEnv."""

    def __init__(self, count: int) -> None:
        self.envs = gymnasium.vector.AsyncVectorEnv([Challenge] * count)

    def reset(self, seed: int) -> Any:
        return self.envs.reset(seed=seed)[0]

    def step(self, actions: Any) -> tuple[Any, Any]:
        observations, rewards, *_ = self.envs.step(actions)
        return observations, rewards

    def true_states(self) -> Any:
        return self.envs.call("true_state")

    def close(self) -> None:
        self.envs.close()


class Ours:
    """Stretto's own choice."""

    def __init__(self, count: int) -> None:
        import stretto

        self.envs: Any = stretto.make_vec("cage2_b_line", count, env_kwargs={"max_steps": None})
        self.choice = self.envs.choice

    def reset(self, seed: int) -> Any:
        return self.envs.reset(seed=seed)[0]

    def step(self, actions: Any) -> tuple[Any, Any]:
        observations, rewards, *_ = self.envs.step(actions)
        return observations, rewards

    def true_states(self) -> Any:
        from stretto.interop.cyborg import true_state

        return self.envs.map(true_state)

    def close(self) -> None:
        self.envs.close()


DESIGNS = {"stretto": Ours, "AsyncVectorEnv": Async, "pipes": Pipes, "shared memory": Shared, "in process": InProcess}

PLAY, DIGEST, TRUE_STATES, MEMORY = range(4)
"""What a contestant is asked for."""


def cpu_seconds() -> float:
    """Return how long this process and all below it have computed."""
    me = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in [me, *me.children(recursive=True)])


def run(contestant: Any, count: int, what: float, amount: float) -> dict[str, Any]:
    rng = np.random.default_rng(int(amount))
    if what == DIGEST:
        seen = [np.asarray(contestant.reset(SEED), np.float32)]
        for _ in range(DIGEST_STEPS):
            observations, rewards = contestant.step(rng.integers(ACTIONS, size=count))
            seen += [np.asarray(observations, np.float32), np.asarray(rewards, np.float32)]
        return {"digest": hashlib.sha256(b"".join(one.tobytes() for one in seen)).hexdigest()[:16]}
    if what == MEMORY:
        return {"bytes": used_bytes()}
    batches = [rng.integers(ACTIONS, size=count) for _ in range(16)]
    steps, computed, began = 0, cpu_seconds(), time.perf_counter()
    while (took := time.perf_counter() - began) < amount or not steps:
        if what == PLAY:
            contestant.step(batches[steps % len(batches)])
        else:
            contestant.true_states()
        steps += 1
    return {"seconds": took / steps, "cpu": (cpu_seconds() - computed) / steps}


def main() -> None:
    name, count = sys.argv[1], int(sys.argv[2])
    made: list[Any] = []

    def build() -> Any:
        made.append(DESIGNS[name](count))
        return made[0]

    try:
        serve(build, lambda contestant, *numbers: run(contestant, count, *numbers))
    finally:
        made[0].close()


if __name__ == "__main__":
    main()
