"""Choose a torch device and the number of CPU threads; torch is imported on first use."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.errors import ResizeError

if TYPE_CHECKING:
    import torch

# Smaller models run on one thread: a second one gains little on an idle machine, and costs much on
# a busy one, where every short operation waits for it.
MULTI_THREAD_PARAMETERS = 1_000_000


def peak_memory(device: "torch.device") -> Callable[[], int | None]:
    """Return a function for the peak memory since then, in bytes.

    It is that of a CUDA device, else of this process on Linux, or None.

    Source: Linux's proc(5) on /proc/pid/clear_refs, where 5 resets the peak of the resident set.
    """
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: int(torch.cuda.max_memory_allocated(device))
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return lambda: None

    def peak_of_process() -> int | None:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return None if found is None else 1024 * int(found[1])

    return peak_of_process


@contextmanager
def torch_threads(model: Any, threads: int | None) -> Iterator[None]:
    """Set torch's CPU threads inside a ``with`` statement.

    None means those that torch has, but one for small models unless ``OMP_NUM_THREADS`` or
    ``MKL_NUM_THREADS`` is set.
    """
    import torch

    before = torch.get_num_threads()
    is_set_by_user = "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ
    if threads is None and not is_set_by_user:
        parameters = sum(value.numel() for value in model.parameters())
        if parameters < MULTI_THREAD_PARAMETERS:
            threads = 1
    torch.set_num_threads(before if threads is None else threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def open_device(name: str | None = None) -> "torch.device":
    """Return a device by name; None is the accelerator if there is one, else the CPU.

    Raises:
        ResizeError: The device is not available.
    """
    import torch

    default = None
    if torch.accelerator.is_available():
        default = torch.accelerator.current_accelerator()
    if name is None:
        return default or torch.device("cpu")
    available = ["cpu"]
    if default:
        count = torch.accelerator.device_count()
        available += [f"{default.type}:{number}" for number in range(count)]
    if name in available or f"{name}:0" in available:
        return torch.device(name)
    raise ResizeError(f"Device {name!r} is not available.", f"Use {' or '.join(available)}.")
