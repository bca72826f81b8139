"""Choose a torch device and the number of CPU threads; torch is imported on first use."""

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.errors import ResizeError

if TYPE_CHECKING:
    import torch

# Smaller models run on one thread: a second one gains little on an idle machine, and costs much on
# a busy one, where every short operation waits for it.
MULTI_THREAD_PARAMETERS = 1_000_000


def available_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs available to this process, at least 1, according to affinity and
    cgroup quotas.
    """
    minimum: float = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    cgroups = root / "proc/self/cgroup"
    for line in cgroups.read_text().splitlines() if cgroups.exists() else ():  # Linux only
        if line.startswith("0::"):  # version 2; parent groups limit too
            # In a container, the process's group may be visible only as the root.
            for folder in (root / "sys/fs/cgroup" / line[3:].strip("/") / "-").parents:
                with suppress(OSError, ValueError):  # ValueError: "max"
                    quota, period = map(int, (folder / "cpu.max").read_text().split())
                    minimum = min(minimum, quota / period)
    return math.ceil(minimum)


def peak_memory(device: "torch.device") -> Callable[[], int | None]:
    """Return a function for the peak memory since, in bytes: of a CUDA device, else of this process
    on Linux, or None.

    Source: Linux's proc(5) on /proc/pid/clear_refs, where 5 resets the peak of the resident set.
    """
    import torch

    process, line = Path("/proc/self"), re.compile(r"VmHWM:\s+(\d+) kB")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: int(torch.cuda.max_memory_allocated(device))
    try:
        (process / "clear_refs").write_text("5")
    except OSError:
        return lambda: None
    return lambda: next(
        (1024 * int(size) for size in line.findall((process / "status").read_text())), None
    )


@contextmanager
def torch_threads(model: Any, threads: int | None) -> Iterator[None]:
    """Set torch's CPU threads; None: ``OMP_NUM_THREADS`` if set, else one for small models and all
    CPUs for others.
    """
    import torch

    before = torch.get_num_threads()
    if threads is None and {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}.isdisjoint(os.environ):
        is_small = sum(value.numel() for value in model.parameters()) < MULTI_THREAD_PARAMETERS
        threads = 1 if is_small else min(before, available_cpus())
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def open_device(name: str | None = None) -> "torch.device":
    """Return a device by name; None is the accelerator if there is one, else the CPU."""
    import torch

    default = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name is None:
        return default or torch.device("cpu")
    available = [
        "cpu",
        *(
            f"{default.type}:{number}"
            for number in range(torch.accelerator.device_count())
            if default
        ),
    ]
    if name in available or f"{name}:0" in available:
        return torch.device(name)
    raise ResizeError(f"Device {name!r} is not available.", f"Use {' or '.join(available)}.")
