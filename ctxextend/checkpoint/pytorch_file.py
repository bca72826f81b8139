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
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.checkpoint.copy import read_range
from ctxextend.checkpoint.safetensors_file import (
    METADATA,
    ML_DTYPES_NAMES,
    NUMPY_NAMES,
    TensorFile,
    describe_tensors,
    plain_names,
)
from ctxextend.errors import CheckpointError

SURROGATE = re.compile("[\ud800-\udfff]")  # which no file name or header can contain
DATA = re.compile(r"[^/]+/data/[^/]+")  # the zip's records of tensor data
BYTE_ORDER = re.compile(r"[^/]+/byteorder")  # the record that states their byte order
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

# Names in safetensors of torch's dtypes.
NAMES_OF_DTYPES: Mapping[str, str] = {
    **{np.dtype(dtype).name: name for name, dtype in NUMPY_NAMES.items()},
    **{dtype: name for name, dtype in ML_DTYPES_NAMES.items()},
    "complex64": "C64",
    "float8_e8m0fnu": "F8_E8M0",
}


@dataclass(frozen=True, eq=False)
class PytorchFile(TensorFile):
    """A PyTorch file, presented as the safetensors file it is converted to."""

    tensors: Mapping[str, torch.Tensor]  # by name, with any strides; tied ones once
    mapped: range | None  # the memory addresses of the mapped file; None if its tensors were read
    # Names in the file that tensors do not have here: of tied tensors, old names, and wrapped ones.
    other_names: frozenset[str] = field(default=frozenset(), kw_only=True)

    @property
    def saved_names(self) -> Set[str]:
        """The names of all tensors in the file, and those that transformers gives them."""
        return self.entries.keys() | self.other_names

    def with_names(self, names: Mapping[str, str]) -> Self:
        """Return the file with other names of its tensors, by the present ones."""
        tensors = {names[name]: tensor for name, tensor in self.tensors.items()}
        return replace(super().with_names(names), tensors=tensors)

    def offset(self, name: str) -> int | None:
        """Return the file offset of a tensor's bytes, in the order of safetensors.

        None if the tensor is empty or not mapped, or if the file has its bytes in another order.
        """
        tensor = self.tensors[name]
        if not tensor.is_contiguous():
            return None
        return self._mapped_offset(tensor)

    def stored_range(self, name: str) -> tuple[int, int] | None:
        """Return the file offset and size in bytes of a tensor's values, in any memory order.

        None if the tensor is empty or not mapped.
        """
        tensor = self.tensors[name]
        offset = self._mapped_offset(tensor)
        if offset is None:
            return None
        last = 0  # the distance of the last value from the first, in values
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            last += (size - 1) * stride
        return offset, (last + 1) * tensor.element_size()

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Read a copy of a tensor's bytes in safetensors' layout, shape (size,)."""
        tensor = self.tensors[name]
        stored = self.stored_range(name)
        if stored is not None:
            # A copy of the range, so that no page of the mapped file stays in memory.
            data = torch.frombuffer(read_range(self.path, *stored), dtype=torch.uint8)
            tensor = data.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
        tensor = tensor.clone(memory_format=torch.contiguous_format)
        # Not reshape(-1): a contiguous tensor of one value may have any stride, and then
        # view(torch.uint8) fails.
        flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        values: NDArray[np.uint8] = flat.numpy()
        return values

    def _mapped_offset(self, tensor: torch.Tensor) -> int | None:
        if self.mapped is None or not tensor.numel():
            return None
        address = tensor.data_ptr()
        if address not in self.mapped:
            return None
        return address - self.mapped.start


def unpickle(path: Path) -> tuple[Any, range | None]:
    """Load a PyTorch file without executing code.

    Returns:
        The content, and the memory addresses of the mapped file; None if its tensors were read.

    Raises:
        CheckpointError: The file is malformed, or contains other objects than tensors.
    """
    major, minor = torch.__version__.split(".")[:2]
    if (int(major), int(minor)) < (2, 6):  # CVE-2025-32434, in spite of weights_only
        message = f"torch {torch.__version__} may execute code from a file that it loads."
        raise CheckpointError(message, "Upgrade it: pip install 'torch>=2.6'")
    try:
        if zipfile.is_zipfile(path):
            offsets = _data_offsets(path)
            if offsets is not None:
                return _load_mapped(path, offsets)
        return _torch_load(path, lambda storage, location: storage, mmap=False), None
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


def _load_mapped(path: Path, offsets: set[int]) -> tuple[Any, range]:
    """Load a zip file without reading its tensors, whose bytes are mapped into memory.

    torch maps the whole file, so that each record of tensor data is at ``start + its offset``, with
    one `start` for all: the lowest address less the lowest offset. If records are at 64 and 192,
    and tensors at 1064 and 1192, the file starts at 1000; a tensor at 1128 would have no record.
    """
    addresses = set[int]()

    def note_address(storage: Any, location: str) -> Any:
        if storage.nbytes():
            addresses.add(storage.data_ptr())
        return storage

    content = _torch_load(path, note_address, mmap=True)
    start = min(addresses, default=0) - min(offsets, default=0)
    tensor_offsets = {address - start for address in addresses}
    if tensor_offsets != offsets:
        message = f"{path} contains data records that belong to no tensor."
        raise CheckpointError(message, SAVE_TENSORS)
    return content, range(start, start + path.stat().st_size)


def _torch_load(path: Path, map_location: Callable[[Any, str], Any], *, mmap: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warnings are in the error, or irrelevant
        return torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)


def _data_offsets(path: Path) -> set[int] | None:
    """Return the offsets of all tensor data in a zip file; None for another byte order."""
    offsets = set[int]()
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            name = record.filename
            if record.compress_type != zipfile.ZIP_STORED:  # torch would read its bytes as values
                message = f"{path}: its record {name!r} is compressed."
                raise CheckpointError(message, SAVE_TENSORS)
            if BYTE_ORDER.fullmatch(name) and archive.read(record) != sys.byteorder.encode():
                return None
            if DATA.fullmatch(name) and record.file_size:
                # The sizes of name and extra field are in the local header, which has 30 bytes:
                # https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, section 4.3.7.
                lengths = read_range(path, record.header_offset + 26, 4)
                name_length = int.from_bytes(lengths[:2], "little")
                extra_length = int.from_bytes(lengths[2:], "little")
                offsets.add(record.header_offset + 30 + name_length + extra_length)
    return offsets


def open_state(path: Path, content: Any, mapped: range | None, *, ties: bool) -> PytorchFile:
    """Describe the content of a file, which is or has a state dict, as a safetensors file.

    Args:
        path: The file.
        content: Its content.
        mapped: The memory addresses of the mapped file; None if its tensors were read.
        ties: As in `as_tensor_file`.

    Raises:
        CheckpointError: It contains no model, or values that safetensors cannot store.
    """
    tensors = find_tensors(content, path)
    state = _state_dict(content)
    # In both names of each pair, old names of LayerNorm are replaced: ``module.LayerNorm.gamma`` in
    # a file is ``module.LayerNorm.weight`` here, by ``LayerNorm.weight``.
    wrapped = dict[str, str]()
    for stored, name in plain_names(state, str(path)).items():
        if name != stored:
            wrapped[_current_name(name)] = _current_name(stored)
    file = as_tensor_file(path, tensors, mapped, ties=ties, wrapped_names=wrapped)
    saved = {*state, *tensors}
    return replace(file, other_names=frozenset(saved - file.entries.keys()))


def find_tensors(content: Any, path: Path) -> dict[str, torch.Tensor]:
    """Return the model's tensors by their names in transformers, in file order.

    Args:
        content: The content of a file, which is or has a state dict.
        path: The file, for messages.

    Raises:
        CheckpointError: It contains no model, or values that safetensors cannot store.
    """
    state = _state_dict(content)
    if not isinstance(state, dict) or not state:
        kind = type(state).__name__
        message = f"{path} contains no named tensors, only an object of type {kind}."
        raise CheckpointError(message, SAVE_TENSORS)
    for key, value in state.items():
        _check_stored(path, key, value)
    plain = plain_names(state, str(path))
    tensors: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        name = _current_name(plain[key])
        if name in tensors:
            message = f"{path} contains {name!r} twice, under its old and its new name."
            raise CheckpointError(message, SAVE_TENSORS)
        tensors[name] = value.detach()
    return tensors


def _current_name(name: str) -> str:
    for old, new in RENAMED.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _state_dict(content: Any) -> Any:
    if not isinstance(content, dict) or all(map(_is_tensor, content.values())):
        return content
    for key in NESTED:
        state = content.get(key)
        if isinstance(state, dict) and state and all(map(_is_tensor, state.values())):
            return state
    return content


def _is_tensor(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def _check_stored(path: Path, key: Any, value: Any) -> None:
    what = ""
    if not isinstance(key, str) or key == METADATA or SURROGATE.search(key):
        what = "not a valid tensor name"
    elif not _is_tensor(value):
        what = f"of type {type(value).__name__}, not a tensor"
    elif value.is_meta or value.is_nested or value.is_quantized or value.layout != torch.strided:
        what = f"not a dense tensor ({value.layout}, {value.dtype}, on {value.device})"
    elif value.is_conj() or value.is_neg():
        what = "a conjugate or negative view, which safetensors cannot store"
    elif str(value.dtype).removeprefix("torch.") not in NAMES_OF_DTYPES:
        what = f"of dtype {value.dtype}, which safetensors cannot store"
    else:
        stored = value.untyped_storage().nbytes()
        if value.numel() * value.element_size() > stored + MAX_EXPANSION:
            what = f"expanded from {stored:,} bytes to shape {tuple(value.shape)}"
    if what:
        raise CheckpointError(f"{path}: {key!r:.200} is {what}.", SAVE_TENSORS)


def as_tensor_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    mapped: range | None,
    *,
    ties: bool,
    wrapped_names: Mapping[str, str] | None = None,
) -> PytorchFile:
    """Describe tensors as a safetensors file.

    Args:
        path: Their file.
        tensors: The tensors by name.
        mapped: The memory addresses of the mapped file; None if its tensors were read.
        ties: Whether the model ties tensors on loading, so that all names but one are dropped.
        wrapped_names: Names with wrappers, by name.
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
        tensors=kept,
        mapped=mapped,
        is_in_memory=mapped is None,
        stored_names=wrapped_names or {},
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
