"""Ctrl-C and its like, heard between two steps, so that what is saved is whole."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import distributed

from ctxextend.checkpoints.atomic_output import SIGNALS

__all__ = ["Stop", "heard_between_steps"]


# Seconds within which a second signal says the same: a terminal and a launcher both pass on what was typed once.
SAME_WISH = 2.0


class Stop:
    """Whether the run is to stop.

    Attributes:
        signal: The signal that asked for it; None where none did.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._asked_at = 0.0

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        """Remember a signal; whoever asks again, waits no longer."""
        if self.signal is None:
            self.signal, self._asked_at = number, time.monotonic()
        elif time.monotonic() - self._asked_at > SAME_WISH:
            raise KeyboardInterrupt

    def is_wanted(self) -> bool:
        """Whether any process of the run was asked to stop: all must stop after the same step."""
        if not distributed.is_initialized():
            return self.signal is not None
        wanted = torch.tensor(float(self.signal is not None))
        if distributed.get_backend() == "nccl":
            wanted = wanted.cuda()
        distributed.all_reduce(wanted, distributed.ReduceOp.MAX)
        return bool(wanted)


@contextmanager
def heard_between_steps(stop: Stop) -> Iterator[None]:
    """Keep signals for `stop` while the block runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, stop.ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
