"""Read PyTorch files (`torch.save`) as the safetensors files they are converted to, without
executing code.

The format is a pickle of all tensor names and the tensors' bytes, in one zip file since torch 1.6;
see https://docs.pytorch.org/docs/stable/notes/serialization.html, section "Serialized file format
for torch.save".
"""

import re
import sys
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.checkpoints.copy import read_range
from ctxextend.checkpoints.safetensors_file import (
    METADATA,
    ML_DTYPES_NAMES,
    NUMPY_NAMES,
    TensorFile,
    describe_tensors,
)
from ctxextend.checkpoints.training_files import (
    CONVERT_MEGATRON,
    DEEPSPEED,
    MEGATRON,
    check_content,
    find_program,
    save_state_command,
)
from ctxextend.checkpoints.wrappers import check_names, plain_names
from ctxextend.errors import CheckpointError

DATA = re.compile(r"[^/]+/data/[^/]+")  # the zip's records of tensor data
BYTE_ORDER = re.compile(r"[^/]+/byteorder")  # the record that states their byte order
SAVE_TENSORS = (
    "Save only dense tensors in the program that wrote it: torch.save(model.state_dict(), NAME)."
)
# Keys of the model's tensors in training checkpoints; the last one is DeepSpeed's.
NESTED = ("state_dict", "model", "module")
RENAMED = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
}  # on loading, by transformers

TIED_ON_LOADING = re.compile(  # by transformers, which does not save them: `_tied_weights_keys`
    r"(?P<owner>(?:.+?\.)??)(?:(?:cls\.)?predictions\.decoder\.(?:weight|bias)|lm_head\.(?:decoder\.)?(?:weight|bias)"
    r"|(?:encoder|decoder)\.(?:embed_tokens|word_embeddings)\.weight|entity_predictions\.decoder\.weight"
    r"|(?:generator_lm_head|output_projection|pred_layer\.proj|proj_out|vocab_projector)\.weight)"
)
# sorted last: a tied tensor has its embedding's name, but RoBERTa's head is before it
LM_HEAD = ".lm_head."
MAX_EXPANSION = (
    1 << 30
)  # bytes of a tensor beyond those stored: a stride of 0 expands a few bytes to terabytes

DTYPES: Mapping[str, str] = {  # safetensors' names of torch's dtypes
    **{np.dtype(dtype).name: name for name, dtype in NUMPY_NAMES.items()},
    **{dtype: name for name, dtype in ML_DTYPES_NAMES.items()},
    **{"complex64": "C64", "float8_e8m0fnu": "F8_E8M0"},
}


@dataclass(frozen=True, eq=False)
class PytorchFile(TensorFile):
    """A PyTorch file, presented as the safetensors file it is converted to."""

    tensors: Mapping[str, torch.Tensor]  # by name, with any strides; tied ones once
    mapped: range | None  # the memory addresses of the mapped file; None if its tensors were read

    def with_names(self, names: Mapping[str, str]) -> Self:
        """Return the file with other names of its tensors, by the present ones."""
        tensors = {names[name]: tensor for name, tensor in self.tensors.items()}
        return replace(super().with_names(names), tensors=tensors)

    def offset(self, name: str) -> int | None:
        """Return the file offset of a tensor's bytes; None if they are not stored as in
        safetensors.
        """
        tensor = self.tensors[name]
        return self._mapped_offset(tensor) if tensor.is_contiguous() else None

    def stored_range(self, name: str) -> tuple[int, int] | None:
        """Return the file offset and size in bytes of a tensor's values; None if it is empty or not
        mapped.
        """
        tensor = self.tensors[name]
        offset = self._mapped_offset(tensor)
        reach = 1 + sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        return None if offset is None else (offset, reach * tensor.element_size())

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Read a copy of a tensor's bytes in safetensors' layout, shape (size,)."""
        tensor = self.tensors[name]
        stored = self.stored_range(name)
        if stored is not None:
            data = torch.frombuffer(
                read_range(self.path, *stored), dtype=torch.uint8
            )  # no page stays in memory
            tensor = data.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
        tensor = tensor.clone(memory_format=torch.contiguous_format)
        # Not reshape(-1): a contiguous tensor of one value may have any stride, and then
        # view(torch.uint8) fails.
        flat: NDArray[np.uint8] = (
            tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
        )
        return flat

    def _mapped_offset(self, tensor: torch.Tensor) -> int | None:
        address = tensor.data_ptr() if tensor.numel() else 0
        return address - self.mapped.start if self.mapped and address in self.mapped else None


def unpickle(path: Path) -> tuple[Any, range | None]:
    """Load a PyTorch file without executing code; return its content and mapped addresses, None if
    not mapped.
    """
    if tuple(map(int, torch.__version__.split(".")[:2])) < (
        2,
        6,
    ):  # CVE-2025-32434, in spite of weights_only
        message = f"torch {torch.__version__} may execute code from a file that it loads."
        raise CheckpointError(message, "Upgrade it: pip install 'torch>=2.6'")
    addresses = set[int]()

    def note_address(storage: Any, location: str) -> Any:
        if storage.nbytes():
            addresses.add(storage.data_ptr())
        return storage

    try:
        offsets = _data_offsets(path) if zipfile.is_zipfile(path) else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's warnings are in the error, or irrelevant
            content = torch.load(
                path, map_location=note_address, weights_only=True, mmap=offsets is not None
            )
        if offsets is None:
            return content, None
        start = min(addresses, default=0) - min(offsets, default=0)
        if {address - start for address in addresses} != offsets:
            raise CheckpointError(
                f"{path} contains data records that belong to no tensor.", SAVE_TENSORS
            )
        return content, range(start, start + path.stat().st_size)
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # hostile files can raise any exception
        message = f"{path} is not a valid PyTorch file with only tensors"
        advice = "Download or save it again."
        if match := re.search(r"GLOBAL ([\w.]+)", str(error)):
            message = (
                f"{path} references {match[1].rstrip('.')}, which is not a tensor type; no code "
                "was executed"
            )
            advice = _advice(path)
        hint = f"Do not load it elsewhere unless you trust its source. {advice}"
        raise CheckpointError(f"{message} ({type(error).__name__}).", hint) from error


def _advice(path: Path) -> str:
    """Say how to save only the tensors of a file with other objects, which is not loaded."""
    program = find_program(path)
    if program == MEGATRON:
        return f"It is a part of a {MEGATRON}. {CONVERT_MEGATRON}"
    if program is None:
        return SAVE_TENSORS
    key = "module" if program == DEEPSPEED else "state_dict"
    return f"It is a {program}. If you do, save only its tensors: {save_state_command(path, key)}"


def _data_offsets(path: Path) -> set[int] | None:
    """Return the offsets of all tensor data in a zip file; None if it has another byte order than
    this machine.
    """
    offsets = set[int]()
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            if (
                record.compress_type != zipfile.ZIP_STORED
            ):  # torch would read the compressed bytes as values
                raise CheckpointError(
                    f"{path}: its record {record.filename!r} is compressed.", SAVE_TENSORS
                )
            if (
                BYTE_ORDER.fullmatch(record.filename)
                and archive.read(record) != sys.byteorder.encode()
            ):
                return None
            if DATA.fullmatch(record.filename) and record.file_size:
                lengths = read_range(
                    path, record.header_offset + 26, 4
                )  # of the file name and the extra field
                header_size = (
                    30
                    + int.from_bytes(lengths[:2], "little")
                    + int.from_bytes(lengths[2:], "little")
                )
                offsets.add(record.header_offset + header_size)
    return offsets


def find_tensors(content: Any, path: Path) -> dict[str, torch.Tensor]:
    """Return the model's tensors by their names in transformers, in file order; `content` is or has
    a state dict.
    """
    if isinstance(content, dict):
        check_content(content, path)
    state = _state_dict(content)
    if not isinstance(state, dict) or not state:
        message = (
            f"{path} contains no named tensors, only an object of type {type(state).__name__}."
        )
        raise CheckpointError(message, SAVE_TENSORS)
    for key, value in state.items():
        if problem := _problem(key, value):
            raise CheckpointError(f"{path}: {key!r:.200} is {problem}.", SAVE_TENSORS)
    plain = plain_names(state, str(path))
    check_names("\n".join(plain.values()), str(path))
    tensors: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        name = plain[key]
        for old, new in RENAMED.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        if name in tensors:
            raise CheckpointError(
                f"{path} contains {name!r} twice, under its old and its new name.", SAVE_TENSORS
            )
        tensors[name] = value.detach()
    return tensors


def find_stored_names(content: Any, path: Path) -> dict[str, str]:
    """Return the stored names of tensors from which `find_tensors` removes wrappers, by their plain
    names.
    """
    plain = plain_names(_state_dict(content), str(path))
    return {name: stored for stored, name in plain.items() if name != stored}


def _state_dict(content: Any) -> Any:
    """Return the dictionary of tensors in the content of a file, or the content itself."""
    if not isinstance(content, dict) or all(map(_is_tensor, content.values())):
        return content
    states = [value for value in map(content.get, NESTED) if isinstance(value, dict) and value]
    return next((value for value in states if all(map(_is_tensor, value.values()))), content)


def _is_tensor(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def _problem(key: Any, value: Any) -> str | None:
    """Return why safetensors cannot store a value under a key; None if it can."""
    if not isinstance(key, str) or key == METADATA:
        return "not a valid tensor name"
    if not _is_tensor(value):
        return f"of type {type(value).__name__}, not a tensor"
    if value.is_meta or value.is_nested or value.is_quantized or value.layout != torch.strided:
        return f"not a dense tensor ({value.layout}, {value.dtype}, on {value.device})"
    if str(value.dtype).removeprefix("torch.") not in DTYPES or value.is_conj() or value.is_neg():
        kind = (
            "a conjugate or negative view"
            if value.is_conj() or value.is_neg()
            else f"of dtype {value.dtype}"
        )
        return f"{kind}, which safetensors cannot store"
    stored = value.untyped_storage().nbytes()
    is_expanded = value.numel() * value.element_size() > stored + MAX_EXPANSION
    return f"expanded from {stored:,} bytes to shape {tuple(value.shape)}" if is_expanded else None


def as_tensor_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    mapped: range | None,
    *,
    ties: bool,
    stored_names: Mapping[str, str] | None = None,
) -> PytorchFile:
    """Describe tensors as a safetensors file; with `ties`, drop names that transformers ties on
    loading.
    """
    tied = _tied_names(tensors) if ties else set()
    kept = {name: tensor for name, tensor in tensors.items() if name not in tied}
    shapes = {
        name: (DTYPES[str(item.dtype).removeprefix("torch.")], tuple(item.shape))
        for name, item in kept.items()
    }
    try:
        header, entries = describe_tensors(shapes)
    except ValueError as error:
        raise CheckpointError(
            f"{path} cannot be written as safetensors: {error}.", SAVE_TENSORS
        ) from None
    return PytorchFile(
        path,
        header,
        entries,
        0,
        kept,
        mapped,
        is_in_memory=mapped is None,
        stored_names=stored_names or {},
    )


def _tied_names(tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the names to drop: all but the first of each tied tensor, with LM heads sorted
    last.
    """
    kept: dict[Any, str] = {}
    tied = set()
    for name in sorted(tensors, key=lambda name: LM_HEAD in f".{name}"):
        tensor = tensors[name]
        # Empty tensors have no storage, so they all share one address.
        first = kept.setdefault(
            (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype), name
        )
        match = TIED_ON_LOADING.fullmatch(name)
        # Other tensors that share storage are written out: transformers does not tie across
        # submodels.
        if first != name and tensor.numel() and match and first.startswith(match["owner"]):
            tied.add(name)
    return tied
