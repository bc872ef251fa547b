"""Models of Sorrel's that die, hang or raise when they are trained; workers import them from here."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from sorrel.models.pytorch import PyTorchIQN


class Faulty(PyTorchIQN):
    """A model that does something once, in its second training, before it trains; `once` is the file that says it did."""

    once: str
    caller: int

    def fault(self) -> None:
        raise ValueError("these weights are bad")

    def train_step(self) -> Any:
        trained = bool(self.optimizer.state)
        if trained and not Path(self.once).exists() and os.getpid() != self.caller:
            Path(self.once).touch()
            self.fault()
        return super().train_step()


class Dying(Faulty):
    def fault(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Hanging(Faulty):
    def fault(self) -> None:
        threading.Event().wait()
