"""Read PyTorch files (`torch.save`) as the safetensors files that they are converted to.

No code in them is executed. The format is a pickle of all tensor names and the tensors' bytes, in
one zip file since torch 1.6; see
https://docs.pytorch.org/docs/stable/notes/serialization.html, section "Serialized file format for
torch.save".
"""

import re
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
    describe_tensors,
    plain_names,
)
from ctxextend.errors import CheckpointError

SURROGATE = re.compile("[\ud800-\udfff]")  # which no file name or header can contain
SAVE_TENSORS = (
    "Save only dense tensors in the program that wrote it: torch.save(model.state_dict(), NAME)."
)
# Keys of the model's tensors in training checkpoints; the last one is DeepSpeed's.
NESTED = ("state_dict", "model", "module")
# Renamed by transformers on loading.
RENAMED = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
}
# Tied by transformers on loading, and not saved: `_tied_weights_keys`. The owner is the submodel
# that ties; it is empty if that is the whole model.
TIED_ON_LOADING = re.compile(
    r"""
    (?P<owner>(?:.+?\.)??)
    (?:
        (?:cls\.)?predictions\.decoder\.(?:weight|bias)
        | lm_head\.(?:decoder\.)?(?:weight|bias)
        | (?:encoder|decoder)\.(?:embed_tokens|word_embeddings)\.weight
        | entity_predictions\.decoder\.weight
        | (?:generator_lm_head|output_projection|pred_layer\.proj|proj_out|vocab_projector)\.weight
    )
    """,
    re.VERBOSE,
)
LM_HEAD = ".lm_head."
# Bytes of a tensor beyond those stored: a stride of 0 expands a few bytes to terabytes.
MAX_EXPANSION = 1 << 30

NAMES_OF_DTYPES = {dtype: name for name, dtype in DTYPES.items()}  # in safetensors, of torch's


@dataclass(frozen=True, eq=False)
class PytorchFile(TensorFile):
    """A PyTorch file, presented as the safetensors file it is converted to."""

    tensors: Mapping[str, torch.Tensor]  # by name, with any strides; tied ones once
    mapped: range  # the memory addresses of the mapped file; empty if its tensors were read

    def offset(self, name: str) -> int | None:
        """Return the file offset of a tensor's bytes, in the order of safetensors.

        None if the tensor is empty or not mapped, or if the file has its bytes in another order.
        """
        tensor = self.tensors[name]
        address = tensor.data_ptr()
        if not tensor.numel() or not tensor.is_contiguous() or address not in self.mapped:
            return None
        return address - self.mapped.start

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Read a copy of a tensor's bytes in safetensors' layout, shape (size,)."""
        offset = self.offset(name)
        if offset is not None:  # read, so that no page of the mapped file stays in memory
            return np.frombuffer(read_range(self.path, offset, self.entries[name].size), np.uint8)
        tensor = self.tensors[name]
        packed = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
        values: NDArray[np.uint8] = packed.reshape(-1).view(torch.uint8).numpy()
        return values


def unpickle(path: Path) -> tuple[Any, range]:
    """Load a PyTorch file without executing code.

    Tensors of a zip file are not read: torch maps the whole file into memory, so that each record
    of tensor data is at ``start + its offset``, with one `start` for all: the lowest address less
    the lowest offset.

    Returns:
        The content, and the memory addresses of the mapped file; empty if its tensors were read.

    Raises:
        CheckpointError: The file is malformed, or contains other objects than tensors.
    """
    addresses = set[int]()

    def note_address(storage: Any, location: str) -> Any:
        if storage.nbytes():
            addresses.add(storage.data_ptr())
        return storage

    try:
        offsets = _data_offsets(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's warnings are in the error, or irrelevant
            content = torch.load(
                path, map_location=note_address, weights_only=True, mmap=offsets is not None
            )
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
    if offsets is None:
        return content, range(0)
    start = min(addresses, default=0) - min(offsets, default=0)
    if {address - start for address in addresses} != offsets:
        message = f"{path} contains data records that belong to no tensor."
        raise CheckpointError(message, SAVE_TENSORS)
    return content, range(start, start + path.stat().st_size)


def _data_offsets(path: Path) -> set[int] | None:
    """Return the offsets of all tensor data in a file; None if it cannot be mapped.

    So are files from before torch 1.6, which are no zip files, and those in another byte order.
    """
    if not zipfile.is_zipfile(path):
        return None
    offsets = set[int]()
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            name = record.filename
            _, _, key = name.partition("/")
            if record.compress_type != zipfile.ZIP_STORED:  # torch would read its bytes as values
                message = f"{path}: its record {name!r} is compressed."
                raise CheckpointError(message, SAVE_TENSORS)
            if key == "byteorder" and archive.read(record) != sys.byteorder.encode():
                return None
            if key.startswith("data/") and record.file_size:
                # The sizes of name and extra field are in the local header, which has 30 bytes:
                # https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, section 4.3.7.
                lengths = np.frombuffer(read_range(path, record.header_offset + 26, 4), "<u2")
                offsets.add(record.header_offset + 30 + int(lengths.sum()))
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
        for key in reversed(NESTED):
            nested = content.get(key)
            if isinstance(nested, dict) and nested and all(map(_is_tensor, nested.values())):
                state = nested
    if not isinstance(state, dict) or not state:
        kind = type(state).__name__
        message = f"{path} contains no named tensors, only an object of type {kind}."
        raise CheckpointError(message, SAVE_TENSORS)
    for key, value in state.items():
        _check_storable(path, key, value)
    names = plain_names(state, str(path))
    tensors: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        for old, new in RENAMED.items():
            if names[key].endswith(old):
                names[key] = names[key].removesuffix(old) + new
        if names[key] in tensors:
            message = f"{path} contains {names[key]!r} twice, under its old and its new name."
            raise CheckpointError(message, SAVE_TENSORS)
        tensors[names[key]] = value.detach()
    return tensors, names


def _is_tensor(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def _check_storable(path: Path, key: Any, value: Any) -> None:
    what = ""
    if not isinstance(key, str) or key == METADATA or SURROGATE.search(key):
        what = "not a valid tensor name"
    elif not _is_tensor(value):
        what = f"of type {type(value).__name__}, not a tensor"
    elif (
        str(value.dtype).removeprefix("torch.") not in NAMES_OF_DTYPES
        or value.layout != torch.strided
        or value.is_meta
        or value.is_nested
        or value.is_conj()
        or value.is_neg()
    ):
        kind = f"{value.layout}, {value.dtype}, on {value.device}"
        what = f"not a dense tensor that safetensors can store ({kind})"
    else:
        stored = value.untyped_storage().nbytes()
        if value.numel() * value.element_size() > stored + MAX_EXPANSION:
            what = f"expanded from {stored:,} bytes to shape {tuple(value.shape)}"
    if what:
        raise CheckpointError(f"{path}: {key!r:.200} is {what}.", SAVE_TENSORS)


def as_tensor_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    mapped: range,
    names: Mapping[str, str],
    *,
    ties: bool,
) -> PytorchFile:
    """Describe tensors as a safetensors file.

    Args:
        path: Their file.
        tensors: The tensors by name.
        mapped: The memory addresses of the mapped file; empty if its tensors were read.
        names: Their names by those in the file.
        ties: Whether the model ties tensors on loading, so that all names but one are dropped.
    """
    kept = dict(tensors)
    if ties:
        for name in _tied_names(tensors):
            del kept[name]
    described = {}
    for name, tensor in kept.items():
        dtype = NAMES_OF_DTYPES[str(tensor.dtype).removeprefix("torch.")]
        described[name] = (dtype, tuple(tensor.shape))
    header, entries = describe_tensors(described)
    return PytorchFile(
        path=path,
        header=header,
        entries=entries,
        data_start=0,
        is_in_memory=not mapped,
        names=names,
        tensors=kept,
        mapped=mapped,
    )


def _tied_names(tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the names to drop: transformers ties them to the first name of the same tensor.

    For example, BERT's ``cls.predictions.decoder.weight`` is dropped, and its
    ``bert.embeddings.word_embeddings.weight`` is kept. Names of LM heads count as last ones, since
    RoBERTa's head precedes its embeddings in files. transformers ties names only within one
    submodel, whose prefix is the owner. Across submodels, and for other names, tensors that share
    storage are written twice.
    """
    first_names: dict[Any, str] = {}
    tied = set[str]()
    for name in sorted(tensors, key=lambda name: LM_HEAD in f".{name}"):
        tensor = tensors[name]
        if not tensor.numel():
            continue  # empty tensors have no storage, so they all share one address
        view = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        first = first_names.setdefault(view, name)
        match = TIED_ON_LOADING.fullmatch(name)
        if first != name and match is not None and first.startswith(match["owner"]):
            tied.add(name)
    return tied
