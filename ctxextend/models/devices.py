"""What models run on: a device, and how many threads of the CPU; torch is imported when a function is called."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.errors import ResizeError

if TYPE_CHECKING:
    import torch

# Models of fewer parameters run on one thread: a second one gains little on an idle machine, and costs much on a busy
# one, where every short operation waits for it.
ONE_THREAD = 1_000_000


def available_cpus(root: Path = Path("/")) -> int:
    """Return how many CPUs this process may use, by its affinity and the quotas of its cgroups, 1 or more."""
    minimum: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cgroups = root / "proc/self/cgroup"
    for line in cgroups.read_text().splitlines() if cgroups.exists() else ():  # Linux alone has them
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")  # of version 1, or 2
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        # Quotas above the own group count too; in a container, its own may be seen at the top alone.
        for folder in (top / group.strip("/") / "-").parents:
            with suppress(OSError, ValueError):  # "max" is no number
                quota, period = (int(value) for file in files for value in (folder / file).read_text().split())
                minimum = min(minimum, quota / period if quota > 0 else minimum)  # -1 is none
    return math.ceil(minimum)


@contextmanager
def running(model: Any, threads: int | None) -> Iterator[None]:
    """Let torch use so many CPU threads while a model runs; None is what ``OMP_NUM_THREADS`` says, or what helps."""
    import torch

    before = torch.get_num_threads()
    if threads is None and {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}.isdisjoint(os.environ):
        is_tiny = sum(value.numel() for value in model.parameters()) < ONE_THREAD
        threads = 1 if is_tiny else min(before, available_cpus())
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def open_device(name: str | None = None) -> "torch.device":
    """Return a device by its name; None is the accelerator, if there is one, and else the CPU."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name is None:
        return found or torch.device("cpu")
    known = ["cpu", *(f"{found.type}:{number}" for number in range(torch.accelerator.device_count()) if found)]
    if name in known or f"{name}:0" in known:
        return torch.device(name)
    raise ResizeError(f"There is no device {name!r} here.", f"Use {' or '.join(known)}.")
