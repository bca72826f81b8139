"""What is installed, and what is missing for which command.

It reads the metadata of installed packages and the environment, and needs no other library itself,
so that it also works where one is missing or broken. `python -m ctxextend.environment` prints the
JSON of the report even without typer.
"""

import getpass
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from ctxextend.errors import one_line, size_text, without_tokens
from ctxextend.json_output import Result, to_json
from ctxextend.models.devices import available_cpus
from ctxextend.version import __version__

# The libraries that ctxextend requires; the metadata of an installed one state their versions.
REQUIRED = (
    "huggingface-hub",
    "ml-dtypes",
    "numpy",
    "plotext",
    "pyyaml",
    "rich",
    "safetensors",
    "torch",
    "transformers",
    "typer",
)
# What libraries of extras are for, by extra and library. Not those for developers.
USES = {
    "train": {
        "accelerate": "train, and training in resize, convert, compare, run and demo",
        "datasets": "--data of .csv, .tsv and .parquet files, and hf:OWNER/NAME",
        "peft": "train --lora",
        "sentence-transformers": "train --contrastive",
    },
    "plot": {
        "jinja2": "--report",
        "matplotlib": "--plot and --report",
    },
    "gguf": {
        "gguf": "GGUF files",
    },
}
MODULE_NAMES = {"pyyaml": "yaml"}  # of libraries whose module has another name
# A requirement in metadata: ``peft>=0.18; extra == 'train'``.
REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?:\[[^]]*\])?\s*\(?(?P<versions>[^;()]*)\)?\s*"
    r"(?:;.*?extra\s*==\s*['\"](?P<extra>[\w-]+)['\"])?"
)
LOW_SPACE = 2_000_000_000  # bytes; a small checkpoint and its resize
MAX_FILES = 50_000  # of the Hub cache that are counted
TRUE_VALUES = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads its variables


@dataclass(frozen=True)
class InstalledLibrary:
    """A library that ctxextend requires, or that an extra installs."""

    name: str
    version: str | None  # None if it is not installed, or if its version is unknown
    required: str  # the versions that are supported, such as ``>=2.7``; empty if unknown
    extra: str  # the extra that installs it; empty if ctxextend always requires it
    # ``ok``, ``missing``, ``broken`` (it cannot be imported) or ``other version``.
    state: str


@dataclass(frozen=True)
class FoundDevice:
    """A device that torch can use besides the CPU."""

    name: str  # as ``--device`` takes it
    model: str
    memory: int | None  # in bytes; None if unknown


@dataclass(frozen=True)
class Disk:
    """The space of a folder's disk."""

    use: str  # what the folder is for
    folder: str
    free: int | None  # in bytes; None if the folder cannot be read
    total: int | None  # in bytes


@dataclass(frozen=True)
class HubCache:
    """The cache of huggingface_hub, and how the Hub is used."""

    folder: str
    bytes: int  # of the files in it
    is_complete: bool  # whether all files were counted
    is_offline: bool  # whether a variable disables downloads
    has_token: bool  # whether a token is stored or set


@dataclass(frozen=True)
class Problem:
    """Something that is missing, broken or short."""

    level: str  # ``error`` (ctxextend does not work), ``warning`` or ``notice``
    message: str
    fix: str | None  # the command to type next, or None


@dataclass(frozen=True, eq=False, repr=False)
class Environment(Result, shows=("version", "python", "passed")):
    """What `doctor` found. No text names the user, and none contains a token."""

    version: str  # of ctxextend
    folder: str  # from which ctxextend is imported
    python: str
    platform: str
    cpus: int  # that this process may use
    memory: int | None  # of the machine, in bytes; None if unknown
    libraries: tuple[InstalledLibrary, ...]  # those that are required first
    devices: tuple[FoundDevice, ...]
    hub: HubCache
    disks: tuple[Disk, ...]
    problems: tuple[Problem, ...]  # errors first

    json_properties: ClassVar = ("passed",)

    @property
    def passed(self) -> bool:
        """Whether every required library is there, can be imported and has a supported version."""
        return all(problem.level != "error" for problem in self.problems)


def doctor() -> Environment:
    """Report versions, devices, caches and disks, and what is missing for which command.

    It imports the required libraries, torch included, and asks torch for its devices. A library
    that is missing or broken is reported, and raises nothing.
    """
    requirements = _requirements()
    problems = list[Problem]()
    if requirements is None:
        problems.append(
            Problem(
                level="warning",
                message="ctxextend is not installed as a package: the versions that it supports "
                "are unknown.",
                fix="pip install ctxextend",
            )
        )
    libraries = list[InstalledLibrary]()
    for name, required in _required_versions(requirements or ()).items():
        library, problem = _required_library(name, required)
        libraries.append(library)
        problems += problem
    for extra, uses in USES.items():
        for name in uses:
            required = _versions(requirements or (), name, extra)
            library, problem = _optional_library(name, required, extra)
            libraries.append(library)
            problems += problem
    devices, more = _devices(libraries)
    problems += more
    hub = _hub_cache()
    disks = tuple(_disks(hub))
    problems += _low_space(disks)
    order = ("error", "warning", "notice")
    return Environment(
        version=__version__,
        folder=_public(str(Path(__file__).parent)),
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        platform=platform.platform(),
        cpus=available_cpus(),
        memory=_memory(),
        libraries=tuple(libraries),
        devices=tuple(devices),
        hub=hub,
        disks=disks,
        problems=tuple(sorted(problems, key=lambda problem: order.index(problem.level))),
    )


# Libraries


@dataclass(frozen=True)
class StatedRequirement:
    """One requirement of ctxextend."""

    name: str
    versions: str
    extra: str


def _requirements() -> list[StatedRequirement] | None:
    """Return what the installed ctxextend requires; None if it is not installed."""
    try:
        stated = requires("ctxextend") or []
    except PackageNotFoundError:
        return None
    found = list[StatedRequirement]()
    for text in stated:
        match = REQUIREMENT.fullmatch(text.strip())
        if match is not None:
            name = match["name"].lower().replace("_", "-")
            found.append(
                StatedRequirement(
                    name=name, versions=match["versions"].strip(), extra=match["extra"] or ""
                )
            )
    return found


def _required_versions(requirements: Sequence[StatedRequirement]) -> dict[str, str]:
    """Return the versions of each required library; empty text where they are unknown."""
    stated = {one.name: one.versions for one in requirements if not one.extra}
    return stated or dict.fromkeys(REQUIRED, "")


def _versions(requirements: Sequence[StatedRequirement], name: str, extra: str) -> str:
    """Return the versions of a library that an extra requires; empty if they are unknown."""
    for one in requirements:
        if (one.name, one.extra) == (name, extra):
            return one.versions
    return ""


def _required_library(name: str, required: str) -> tuple[InstalledLibrary, list[Problem]]:
    """Return a required library, after importing it, and what is wrong with it."""
    installed = _version(name)
    state = "ok"
    problems = list[Problem]()
    fix = f"pip install '{name}{required}'"
    if _is_missing(name, installed):
        state = "missing"
        message = f"ctxextend requires {name}{required}, which is not installed."
        problems.append(Problem(level="error", message=message, fix=fix))
    else:
        reason = _import_error(name)
        if reason:
            state = "broken"
            message = f"{name} {installed or ''} cannot be imported: {reason}".replace("  ", " ")
            fix = f"pip install --force-reinstall '{name}{required}'"
            problems.append(Problem(level="error", message=message, fix=fix))
        elif not _fits(installed, required):
            state = "other version"
            message = f"ctxextend requires {name}{required}, but {installed} is installed."
            problems.append(Problem(level="error", message=message, fix=fix))
    library = InstalledLibrary(
        name=name, version=installed, required=required, extra="", state=state
    )
    return library, problems


def _optional_library(
    name: str, required: str, extra: str
) -> tuple[InstalledLibrary, list[Problem]]:
    """Return a library of an extra, which is not imported, and what is wrong with it."""
    installed = _version(name)
    state = "ok"
    problems = list[Problem]()
    fix = f"pip install 'ctxextend[{extra}]'"
    if _is_missing(name, installed):
        state = "missing"
        message = f"{name} is not installed. It is for: {USES[extra][name]}."
        problems.append(Problem(level="notice", message=message, fix=fix))
    elif not _fits(installed, required):
        state = "other version"
        message = (
            f"{name}{required} is supported, but {installed} is installed. It is for: "
            f"{USES[extra][name]}."
        )
        problems.append(Problem(level="warning", message=message, fix=fix))
    library = InstalledLibrary(
        name=name, version=installed, required=required, extra=extra, state=state
    )
    return library, problems


def _version(name: str) -> str | None:
    """Return the installed version of a library; None if it is not known."""
    try:
        return version(name)
    except Exception:  # damaged metadata raise anything
        return None


def _module(name: str) -> str:
    return MODULE_NAMES.get(name, name.replace("-", "_"))


def _is_missing(name: str, installed: str | None) -> bool:
    """Whether a library is neither installed nor found as a module."""
    if installed is not None:
        return False
    try:
        return find_spec(_module(name)) is None
    except ValueError:  # what was put there has no name
        return False


def _import_error(name: str) -> str:
    """Import a library; return why that failed, or empty text."""
    try:
        import_module(_module(name))
    except (Exception, SystemExit) as error:  # a broken library raises anything
        return _public(f"{type(error).__name__}: {one_line(error)}")
    return ""


def _fits(installed: str | None, required: str) -> bool:
    """Whether a version is one of those that are required; True if that is unknown."""
    if installed is None or not required:
        return True
    try:
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(required).contains(installed, prereleases=True)
    except Exception:  # packaging comes with transformers, and a version may not be valid
        return True


# Devices


def _devices(libraries: Sequence[InstalledLibrary]) -> tuple[list[FoundDevice], list[Problem]]:
    """Return the devices of torch, and what is wrong with them."""
    states = {library.name: library.state for library in libraries}
    if states["torch"] in ("missing", "broken"):
        return [], []
    try:
        devices = list(_torch_devices())
    except Exception as error:  # a broken driver raises anything
        message = _public(
            f"torch cannot list its devices: {type(error).__name__}: {one_line(error)}"
        )
        return [], [Problem(level="warning", message=message, fix=None)]
    if not devices and Path("/proc/driver/nvidia/version").exists():
        message = "An NVIDIA driver is installed, but torch finds no GPU: it may be built for CPUs."
        return [], [Problem(level="warning", message=message, fix=None)]
    return devices, []


def _torch_devices() -> Iterator[FoundDevice]:
    """Yield the accelerators of torch."""
    import torch

    if not torch.accelerator.is_available():
        return
    accelerator = torch.accelerator.current_accelerator()
    kind = accelerator.type if accelerator is not None else ""
    for number in range(torch.accelerator.device_count()):
        name = f"{kind}:{number}"
        if kind == "cuda":
            properties: Any = torch.cuda.get_device_properties(number)
            yield FoundDevice(name=name, model=properties.name, memory=properties.total_memory)
        elif kind == "mps":
            memory = torch.mps.recommended_max_memory()
            yield FoundDevice(name=kind, model=platform.processor() or kind, memory=memory)
        else:
            yield FoundDevice(name=name, model=kind, memory=None)


def _memory() -> int | None:
    """Return the memory of the machine in bytes; None if the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return None


# The Hub, and disks


def _hub_home() -> Path:
    """Return the folder of huggingface_hub, as its constants do."""
    cache = os.getenv("XDG_CACHE_HOME", str(Path("~") / ".cache"))
    home = os.getenv("HF_HOME", str(Path(cache) / "huggingface"))
    return _expanded(home)


def _hub_folder() -> Path:
    """Return the folder of the Hub cache, as huggingface_hub's constants do."""
    default = str(_hub_home() / "hub")
    legacy = os.getenv("HUGGINGFACE_HUB_CACHE", default)
    return _expanded(os.getenv("HF_HUB_CACHE", legacy))


def _expanded(path: str) -> Path:
    return Path(os.path.expanduser(os.path.expandvars(path)))  # noqa: PTH111 - never raises


def _hub_cache() -> HubCache:
    """Return where the Hub cache is, its size, and whether the Hub can be used."""
    folder = _hub_folder()
    size, is_complete = _size(folder)
    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    token_file = _expanded(os.getenv("HF_TOKEN_PATH", str(_hub_home() / "token")))
    variables = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    return HubCache(
        folder=_public(str(folder)),
        bytes=size,
        is_complete=is_complete,
        is_offline=offline.upper() in TRUE_VALUES,
        has_token=any(os.getenv(name) for name in variables) or token_file.is_file(),
    )


def _size(folder: Path) -> tuple[int, bool]:
    """Return the bytes of the files in a folder, not of links, and whether all were counted."""
    size = 0
    count = 0
    for root, _, names in os.walk(folder, onerror=None):
        for name in names:
            path = Path(root, name)
            count += 1
            if count > MAX_FILES:
                return size, False
            try:
                if not path.is_symlink():
                    size += path.stat().st_size
            except OSError:  # it was removed
                continue
    return size, True


def _disks(hub: HubCache) -> Iterator[Disk]:
    """Yield the space of the folders that commands write to."""
    yield _disk("working directory", Path())
    yield _disk("temporary files", Path(tempfile.gettempdir()))
    yield _disk("disk of the cache", _hub_folder())


def _disk(use: str, folder: Path) -> Disk:
    """Return the space of a folder, or of the one in which it will be created."""
    shown = _public(str(folder))
    try:
        existing = folder.absolute()
        shown = _public(str(existing))
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        usage = shutil.disk_usage(existing)
    except OSError:  # the working directory was removed, or may not be read
        return Disk(use=use, folder=shown, free=None, total=None)
    return Disk(use=use, folder=shown, free=usage.free, total=usage.total)


def _low_space(disks: Sequence[Disk]) -> Iterator[Problem]:
    for disk in disks:
        if disk.free is not None and disk.free < LOW_SPACE:
            yield Problem(
                level="warning",
                message=f"{size_text(disk.free)} are free for the {disk.use}, {disk.folder}.",
                fix=None,
            )


# Text for an issue


def _public(text: str) -> str:
    """Return a text without the user's name and without tokens; the home folder is ``~``."""
    text = without_tokens(text)
    try:
        home = str(Path.home())
    except RuntimeError:  # no home is set
        home = os.sep
    if home != os.sep:
        text = re.sub(rf"{re.escape(home)}(?=[\s/\\:'\"]|$)", "~", text)
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # no name is set
        return text
    return re.sub(rf"(?<=[/\\]){re.escape(user)}(?=[/\\]|$)", "USER", text)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(to_json(doctor()), indent=2) + "\n")
