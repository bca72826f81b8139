"""Describe the machine, its disk and the library versions of a benchmark run."""

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ctxextend.version import __version__

__all__ = ["describe_machine", "find_versions"]

PACKAGES = ("torch", "transformers", "safetensors", "numpy", "typer", "rich")


def describe_machine(folder: Path) -> dict[str, str]:
    """Describe the machine and the disk that contains a folder; unknown values are omitted."""
    described = {
        "CPU": _first_value(Path("/proc/cpuinfo"), "model name")
        or platform.processor()
        or platform.machine(),
        "cores": str(os.cpu_count() or ""),
        "memory": _memory(),
        "disk": _disk(folder),
        "kernel": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
    }
    return {name: value for name, value in described.items() if value}


def find_versions() -> dict[str, str]:
    """Return the versions of Python and all benchmarked libraries that are installed."""
    versions = {"ctxextend": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _memory() -> str:
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return ""
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.1f} GB"


def _disk(folder: Path) -> str:
    """Return the file system of a folder and its device."""
    mounts = _lines(Path("/proc/self/mounts"))
    above = [
        (device, path, kind)
        for device, path, kind, *_ in map(str.split, mounts)
        if _contains(path, folder)
    ]
    if not above:
        return ""
    device, _, kind = max(above, key=lambda mount: len(mount[1]))
    return f"{kind} on {device}"


def _contains(path: str, folder: Path) -> bool:
    return folder.resolve().is_relative_to(path)


def _first_value(path: Path, name: str) -> str:
    return next(
        (line.partition(":")[2].strip() for line in _lines(path) if line.startswith(name)), ""
    )


def _lines(path: Path) -> Iterable[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else ()
