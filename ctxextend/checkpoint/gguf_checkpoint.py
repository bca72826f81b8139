"""A GGUF file as a checkpoint: it states its own config, and no other files belong to it."""

from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.checkpoint.copy import file_fingerprint
from ctxextend.checkpoint.filenames import GGUF_SUFFIX
from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.checkpoint.gguf_header import GgufFile, read_header
from ctxextend.checkpoint.gguf_rewrite import plan_gguf_layout
from ctxextend.checkpoint.source import Source
from ctxextend.checkpoint.weights import Weights
from ctxextend.errors import CheckpointError
from ctxextend.gguf.gguf_config import read_config

SPLIT_COUNT = "split.count"


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


def gguf_file(checkpoint: Checkpoint) -> GgufFile:
    """Return the GGUF file that a checkpoint consists of.

    Raises:
        CheckpointError: It consists of other files.
    """
    for file in checkpoint.weights.files.values():
        if isinstance(file, GgufFile):
            return file
    raise CheckpointError(f"{checkpoint.root} is not a GGUF file.", "Pass a GGUF file.")


def gguf_values(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the metadata of a GGUF file by key, without arrays."""
    return gguf_file(checkpoint).metadata.values


def open_gguf_checkpoint(source: Source) -> Checkpoint:
    """Open a GGUF file as a checkpoint without other files.

    Raises:
        CheckpointError: The file cannot be read, is malformed or one of several, or states no
            valid positions.
        UnsupportedModelError: Its architecture is not known.
    """
    assert source.file is not None
    path = source.folder / source.file
    fingerprint = file_fingerprint(path)  # before it is read
    file = open_gguf(path)
    values = file.metadata.values
    count = values.get(SPLIT_COUNT, 1)
    if isinstance(count, int) and count != 1:
        merged = path.name.partition("-00001-of-")[0].removesuffix(GGUF_SUFFIX)
        raise CheckpointError(
            f"{path} is one of {count} files that a model was split into.",
            f"Merge them with llama.cpp: llama-gguf-split --merge FIRST.gguf {merged}{GGUF_SUFFIX}",
        )
    return Checkpoint(
        source=source,
        model=PurePosixPath(),
        config=read_config(values, file.metadata.arrays, file.entries.keys(), source.file),
        weights=Weights(files={source.file: file}),
        generated={},
        copied=(),
        omitted={},
        fingerprints={source.file: fingerprint},
        adapter_of=None,
        config_name=source.file,
        is_gguf=True,
        engine="llama.cpp",
        layout_of=partial(plan_gguf_layout, file),
    )
