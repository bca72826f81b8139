"""Read PyTorch files (`torch.save`) as the safetensors files that they are converted to.

No code in them is executed. The format is a pickle of all tensor names and the tensors' bytes, in
one zip file since torch 1.6; see
https://docs.pytorch.org/docs/stable/notes/serialization.html, section "Serialized file format for
torch.save".
"""

import re
import struct
import sys
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.checkpoint.copy import read_range
from ctxextend.checkpoint.safetensors_file import (
    DTYPES,
    METADATA,
    TensorFile,
    check_distinct,
    describe_tensors,
    plain_names,
)
from ctxextend.errors import CheckpointError

SURROGATE = re.compile("[\ud800-\udfff]")  # which no file name or header can contain
SAVE_TENSORS = (
    "Save only dense tensors in the program that wrote it: torch.save(model.state_dict(), NAME)."
)
# Keys of the model's tensors in training checkpoints, of which the last counts; the first one is
# DeepSpeed's.
NESTED = ("module", "model", "state_dict")
# Renamed by transformers on loading.
RENAMED = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
}
# Bytes of a tensor beyond those stored: a stride of 0 expands a few bytes to terabytes.
MAX_EXPANSION = 1 << 30

NAMES_OF_DTYPES = {dtype: name for name, dtype in DTYPES.items()}  # in safetensors, of torch's


@dataclass(frozen=True, eq=False)
class PytorchFile(TensorFile):
    """A PyTorch file, presented as the safetensors file it is converted to.

    Tensors are read from the file, not from the memory that torch maps it to: pages of it would
    stay there, and a file that is truncated meanwhile would end the process.
    """

    tensors: Mapping[str, torch.Tensor]  # by name, with any strides
    mapped: range  # the addresses of the file in memory; empty if torch read it

    def offset(self, name: str) -> int | None:
        """Return the file offset of a tensor's bytes; None if they have another order there."""
        tensor = self.tensors[name]
        if tensor.is_contiguous() and tensor.numel() and tensor.data_ptr() in self.mapped:
            return tensor.data_ptr() - self.mapped.start
        return None

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Read a tensor's bytes in safetensors' layout, shape (size,)."""
        tensor = self.tensors[name]
        if tensor.numel() and tensor.data_ptr() in self.mapped:
            lengths = zip(tensor.shape, tensor.stride(), strict=True)
            size = 1 + sum((length - 1) * stride for length, stride in lengths)
            start = tensor.data_ptr() - self.mapped.start
            data = torch.frombuffer(
                read_range(self.path, start, size * tensor.element_size()), dtype=torch.uint8
            )
            tensor = data.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
        tensor = tensor.contiguous()
        # Not reshape(-1): a contiguous tensor of one value may have any stride, and then
        # view(torch.uint8) fails.
        flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        values: NDArray[np.uint8] = flat.numpy()
        return values


def unpickle(path: Path) -> tuple[Any, range]:
    """Load a PyTorch file without executing code.

    Returns:
        The content, and the addresses that the file is mapped to. They are empty if torch reads it:
        from before torch 1.6, so that it is not a zip file, or in another byte order.

    Raises:
        CheckpointError: The file is malformed, or contains other objects than tensors.
    """
    try:
        offsets = None
        if zipfile.is_zipfile(path):
            offsets = _data_offsets(path)
        addresses = set[int]()

        def note_address(storage: Any, location: str) -> Any:
            if storage.nbytes():
                addresses.add(storage.data_ptr())
            return storage

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's warnings are in the error, or irrelevant
            content = torch.load(
                path, map_location=note_address, weights_only=True, mmap=offsets is not None
            )
        if not offsets or not addresses:
            return content, range(0)
        # torch maps the whole file: if records are at 64 and 192, and tensors at 1064 and 1192, it
        # starts at 1000.
        start = min(addresses) - min(offsets)
        if {address - start for address in addresses} != offsets:
            message = f"{path} contains data records that belong to no tensor."
            raise CheckpointError(message, SAVE_TENSORS)
        return content, range(start, start + path.stat().st_size)
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # hostile files can raise any exception
        message = f"{path} is not a valid PyTorch file with only tensors"
        advice = "Download or save it again."
        match = re.search(r"GLOBAL ([\w.]+)", str(error))
        if match is not None:
            kind = f"{match[1].rstrip('.')}, which is not a tensor type"
            message = f"{path} references {kind}; no code was executed"
            advice = SAVE_TENSORS
        hint = f"Do not load it elsewhere unless you trust its source. {advice}"
        raise CheckpointError(f"{message} ({type(error).__name__}).", hint) from error


def _data_offsets(path: Path) -> set[int] | None:
    """Return the offsets of all tensor data in a zip file; None for another byte order."""
    offsets = set[int]()
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            if record.compress_type != zipfile.ZIP_STORED:  # torch would read its bytes as values
                raise CheckpointError(f"{path} is compressed.", SAVE_TENSORS)
            name = record.filename.split("/", 1)[-1]
            if name == "byteorder" and archive.read(record) != sys.byteorder.encode():
                return None
            if name.startswith("data/") and record.file_size:
                # The sizes of name and extra field are in the local header, which has 30 bytes:
                # https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, section 4.3.7.
                lengths = struct.unpack("<HH", read_range(path, record.header_offset + 26, 4))
                offsets.add(record.header_offset + 30 + sum(lengths))
    return offsets


def find_tensors(content: Any, path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the model's tensors by their names in transformers, and these by those in the file.

    Args:
        content: The content of a file, which is or has a state dict.
        path: The file, for messages.

    Raises:
        CheckpointError: It contains no model, or values that safetensors cannot store.
    """
    state = content
    if isinstance(content, dict) and not all(map(_is_tensor, content.values())):
        for key in NESTED:
            nested = content.get(key)
            if isinstance(nested, dict) and nested and all(map(_is_tensor, nested.values())):
                state = nested
    if not isinstance(state, dict) or not state:
        kind = type(state).__name__
        message = f"{path} contains no named tensors, only an object of type {kind}."
        raise CheckpointError(message, SAVE_TENSORS)
    for key, value in state.items():
        if not _is_storable(key, value):
            kind = f"{type(value).__name__} {getattr(value, 'dtype', '')}".strip()
            message = f"{path}: {key!r:.200} is not a named tensor of safetensors, but {kind}."
            raise CheckpointError(message, SAVE_TENSORS)
    names = plain_names(state, str(path))
    for key, name in names.items():
        for old, new in RENAMED.items():
            if name.endswith(old):
                names[key] = name.removesuffix(old) + new
    check_distinct(names, str(path))
    return {names[key]: value.detach() for key, value in state.items()}, names


def _is_tensor(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def _is_storable(key: Any, value: Any) -> bool:
    return (
        isinstance(key, str)
        and key != METADATA
        and not SURROGATE.search(key)
        and _is_tensor(value)
        and str(value.dtype).removeprefix("torch.") in NAMES_OF_DTYPES
        and value.layout == torch.strided
        and not (value.is_meta or value.is_nested or value.is_conj() or value.is_neg())
        and value.nbytes <= value.untyped_storage().nbytes() + MAX_EXPANSION
    )


def as_tensor_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    names: Mapping[str, str],
    mapped: range,
) -> PytorchFile:
    """Describe tensors as a safetensors file; one that has several names is written several times.

    Args:
        path: Their file.
        tensors: The tensors by name.
        names: Their names by those in the file.
        mapped: The addresses that the file is mapped to.
    """
    described = {}
    for name, tensor in tensors.items():
        dtype = NAMES_OF_DTYPES[str(tensor.dtype).removeprefix("torch.")]
        described[name] = (dtype, tuple(tensor.shape))
    header, entries = describe_tensors(described)
    return PytorchFile(
        path=path,
        header=header,
        entries=entries,
        data_start=0,
        names=names,
        tensors=tensors,
        mapped=mapped,
    )
