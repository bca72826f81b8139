"""What measurements were taken on: the machine, its disk, and the versions of what ran."""

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ctxextend.version import __version__

__all__ = ["describe_machine", "find_versions"]

PACKAGES = ("torch", "transformers", "safetensors", "numpy", "typer", "rich")


def describe_machine(folder: Path) -> dict[str, str]:
    """Return what the machine is, in words, and the disk that a folder is on; what cannot be known is left out."""
    found = {
        "CPU": _first_value(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine(),
        "cores": str(os.cpu_count() or ""),
        "memory": _memory(),
        "disk": _disk(folder),
        "kernel": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
    }
    return {name: value for name, value in found.items() if value}


def find_versions() -> dict[str, str]:
    """Return the version of everything that a benchmark runs; what is not installed is left out."""
    found = {"ctxextend": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _memory() -> str:
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return ""
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.1f} GB"


def _disk(folder: Path) -> str:
    """Return the file system of a folder, and the device it is on."""
    mounts = _lines(Path("/proc/self/mounts"))
    held = [(device, place, kind) for device, place, kind, *_ in map(str.split, mounts) if _holds(place, folder)]
    if not held:
        return ""
    device, _, kind = max(held, key=lambda mount: len(mount[1]))
    return f"{kind} on {device}"


def _holds(place: str, folder: Path) -> bool:
    return folder.resolve().is_relative_to(place)


def _first_value(path: Path, name: str) -> str:
    return next((line.partition(":")[2].strip() for line in _lines(path) if line.startswith(name)), "")


def _lines(path: Path) -> Iterable[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else ()
