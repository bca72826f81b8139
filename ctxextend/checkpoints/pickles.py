"""Pickles as torch writes them, loaded so that nothing in them is run."""

import os
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

from ctxextend.checkpoints.copying import reading
from ctxextend.checkpoints.nesting import is_endless
from ctxextend.checkpoints.records import Stored, find_places, is_native
from ctxextend.errors import CheckpointError

__all__ = ["SAVE_TENSORS", "is_zip", "load_pickle", "status_of"]

# Before it, a file could run code in spite of weights_only (CVE-2025-32434).
SAFE_SINCE = (2, 6)

# How torch's zip files begin; torch itself goes by it.
ZIP_MAGIC = b"PK\x03\x04"

# How torch calls the record that says what is in a file.
PICKLE = "data.pkl"

# What torch calls files of its first versions when it refuses them.
TAR = "legacy .tar format"

FETCH = "Fetch or save it again."

SAVE_TENSORS = (
    "In the program that wrote it, save the tensors alone: torch.save(model.state_dict(), 'pytorch_model.bin')."
)


def load_pickle(path: Path) -> Stored:
    """Return what a torch file holds; nothing but tensors and plain values is built, and nothing is run.

    Raises:
        CheckpointError: It is missing, truncated, malformed, or holds other objects; or torch is too old to be safe.
    """
    import torch

    _check_version(torch.__version__)
    zipped = is_zip(path)
    try:
        mapped = zipped and _can_be_mapped(path)
        _check_nesting(path, zipped)
        return _loaded(path, mapped)
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # hostile files raise whatever the code that they lead to raises
        raise _refused(path, error) from error


def _loaded(path: Path, mapped: bool) -> Stored:
    import torch

    addresses = set[int]()

    def keep(storage: Any, location: str) -> Any:
        if storage.nbytes():
            addresses.add(storage.data_ptr())
        return storage

    # What torch has to say of odd files stands in the error, or does not matter.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = torch.load(path, map_location=keep, weights_only=True, mmap=mapped)
    return Stored(path, content, mapped, find_places(path, addresses) if mapped else {})


def status_of(path: Path) -> os.stat_result:
    """Return what the system knows of a file.

    Raises:
        CheckpointError: It cannot be read.
    """
    with reading(path):
        return path.stat()


def is_zip(path: Path) -> bool:
    """Whether a torch file is of the kind that can be mapped, which torch writes since 1.6.

    Raises:
        CheckpointError: It cannot be read, is empty, or stands for another.
    """
    with reading(path), path.open("rb") as file:
        prefix = file.read(8)
    if not prefix:
        raise CheckpointError(f"{path} is empty.", FETCH)
    if prefix == b"version ":
        raise CheckpointError(f"{path} is a Git LFS pointer, not the file itself.", "Run `git lfs pull` in its folder.")
    return prefix.startswith(ZIP_MAGIC)


def _check_version(version: str) -> None:
    if tuple(map(int, version.split(".")[:2])) < SAFE_SINCE:
        wanted = ".".join(map(str, SAFE_SINCE))
        raise CheckpointError(
            f"torch {version} can be made to run code by a file that it loads, so no torch file is read with it.",
            f"Upgrade it: pip install 'torch>={wanted}'",
        )


def _can_be_mapped(path: Path) -> bool:
    """Refuse compressed records: torch writes none, and would take their bytes for numbers where it maps them."""
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            if record.compress_type != zipfile.ZIP_STORED:
                raise CheckpointError(
                    f"{path} is a zip file whose {record.filename!r} is compressed, so torch did not write it.", FETCH
                )
        return is_native(archive)


def _check_nesting(path: Path, mapped: bool) -> None:
    """Refuse a file whose pickle would keep torch busy without end."""
    with zipfile.ZipFile(path) if mapped else path.open("rb") as file:
        if isinstance(file, zipfile.ZipFile):
            names = [name for name in file.namelist() if name.endswith(f"/{PICKLE}")]
            endless = any(is_endless(file.open(name)) for name in names)
        else:
            endless = is_endless(file)
    if endless:
        raise CheckpointError(f"{path} nests a value in itself over and over, as no tensors are kept.", FETCH)


def _refused(path: Path, error: Exception) -> CheckpointError:
    asked = re.search(r"GLOBAL ([\w.]+)", str(error))
    if asked:
        return CheckpointError(
            f"{path} asks for {asked[1].rstrip('.')}, which is no tensor; nothing in it was run.",
            f"Do not load it unless you know who wrote it. {SAVE_TENSORS}",
        )
    if TAR in str(error):
        message = f"{path} is no whole torch file, but perhaps a tar of before torch 0.1.10, which is not read."
        return CheckpointError(message, SAVE_TENSORS)
    # What torch puts in front advises to load the file unsafely, and what it puts behind, to report it as a bug.
    said = str(error).split("WeightsUnpickler error:")[-1].strip()
    first = "".join(filter(str.isprintable, re.split(r"\. |\.?\n", said)[0]))
    reason = f"{type(error).__name__}: {first:.200}" if first else type(error).__name__
    return CheckpointError(
        f"{path} is no whole torch file that holds tensors alone ({reason}).",
        f"{FETCH} Do not load it elsewhere unless you know who wrote it.",
    )
