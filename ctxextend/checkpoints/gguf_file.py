"""GGUF files as weights files: their tensors by name, and the metadata that they state."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctxextend.checkpoints.filenames import GGUF_SUFFIX
from ctxextend.checkpoints.gguf_header import GgufHeader, read_header
from ctxextend.checkpoints.safetensors_file import TensorFile


@dataclass(frozen=True, eq=False)
class GgufFile(TensorFile):
    """A GGUF file with a checked header."""

    metadata: GgufHeader = field(kw_only=True)


def is_gguf(path: str | Path | None) -> bool:
    """Whether a file is a GGUF file by its name."""
    return path is not None and str(path).lower().endswith(GGUF_SUFFIX)


def open_gguf(path: Path) -> GgufFile:
    """Open a GGUF file; read no tensor.

    Raises:
        CheckpointError: The file cannot be read, or is malformed.
    """
    header = read_header(path)
    described = dict[str, Any]()
    entries = {name: tensor.entry for name, tensor in header.tensors.items()}
    for name, entry in entries.items():
        described[name] = {"dtype": entry.dtype, "shape": entry.shape, "start": entry.start}
    return GgufFile(
        path=path,
        header=described,
        entries=entries,
        data_start=header.data_start,
        metadata=header,
    )
