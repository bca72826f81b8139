"""PyTorch files of every kind, and changes of their records."""

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ctxextend.checkpoint.pytorch_file import (
    PytorchFile,
    as_tensor_file,
    find_tensors,
    unpickle,
)


def open_pytorch_file(path: Path) -> PytorchFile:
    """Open a PyTorch file in the same way as the weights of a folder."""
    content, mapped = unpickle(path)
    tensors, names = find_tensors(content, path)
    return as_tensor_file(path, tensors, names, mapped)


def write_zip(content: Any, path: Path) -> None:
    torch.save(content, path)


def write_legacy(content: Any, path: Path) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def write_pickle(content: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


def save(content: Any, path: Path, write: Callable[[Any, Path], None] = write_zip) -> Path:
    write(content, path)
    return path


def change_records(
    path: Path,
    change: Callable[[str, bytes], tuple[str, bytes]],
    compression: int = zipfile.ZIP_STORED,
) -> None:
    """Rewrite a zip file with changed names or bytes of its records."""
    with zipfile.ZipFile(path) as archive:
        records = [change(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in records:
            archive.writestr(name, data)
