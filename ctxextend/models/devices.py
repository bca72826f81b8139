"""Choose a torch device and the number of CPU threads; torch is imported on first use."""

import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.errors import ResizeError

if TYPE_CHECKING:
    import torch

# The variables of torch/version.py that name the toolkit of a build; None: built without it.
BUILDS = {"cuda": ("cuda", "hip"), "xpu": ("xpu",)}
# Smaller models run on one thread: a second one gains little on an idle machine, and costs much on
# a busy one, where every short operation waits for it.
MULTI_THREAD_PARAMETERS = 1_000_000


def available_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs that affinity and cgroup quotas leave to this process, at least 1.

    `root` is the root of the file system.
    """
    counts: list[float] = [os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):
        counts = [len(os.sched_getaffinity(0))]
    cgroups = root / "proc/self/cgroup"
    if not cgroups.exists():
        return math.ceil(counts[0])
    for line in cgroups.read_text().splitlines():
        if line.startswith("0::"):  # version 2
            # In a container, the process's group may be visible only as the root.
            group = root / "sys/fs/cgroup" / line.removeprefix("0::").strip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # ValueError: "max"
                    quota, period = map(int, (folder / "cpu.max").read_text().split())
                    counts.append(quota / period)
    return math.ceil(min(counts))


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

    None means those that torch has if ``OMP_NUM_THREADS`` or ``MKL_NUM_THREADS`` is set, else one
    for small models, and for others those that torch has, but at most one for each available CPU.
    """
    import torch

    before = torch.get_num_threads()
    is_set_by_user = "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ
    if threads is None and not is_set_by_user:
        parameters = sum(value.numel() for value in model.parameters())
        threads = 1
        if parameters >= MULTI_THREAD_PARAMETERS:
            threads = min(before, available_cpus())
    torch.set_num_threads(before if threads is None else threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_device(name: str | None) -> None:
    """Check, without importing torch, that the installed build of torch has a kind of device.

    Raises:
        ResizeError: It has not. Whether there is such a device is only known to torch.
    """
    kind = (name or "cpu").partition(":")[0]
    if kind == "mps" and sys.platform != "darwin":
        raise ResizeError(f"Device {name!r} is not available.", "Use cpu.")
    if kind not in BUILDS:
        return
    found = find_spec("torch")
    if found is None or found.origin is None:
        return
    version_file = Path(found.origin).with_name("version.py")
    if not version_file.is_file():
        return
    stated = version_file.read_text("utf-8")
    absent = [f"{variable}: Optional[str] = None" in stated for variable in BUILDS[kind]]
    if all(absent):
        message = f"Device {name!r} is not available: the installed torch is built without it."
        raise ResizeError(message, "Use cpu.")


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
