"""PyTorch files (`torch.save`), read as the safetensors files that they will be written as; nothing in them is run.

The format is a pickle that names every tensor, and the tensors' bytes, since torch 1.6 in one zip file; see
https://docs.pytorch.org/docs/stable/notes/serialization.html, section "Serialized file format for torch.save".
"""

import json
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

from ctxextend.checkpoints.copy import read_range
from ctxextend.checkpoints.safetensors_file import METADATA, OF_ML_DTYPES, OF_NUMPY, TensorFile, parse_header
from ctxextend.errors import CheckpointError

# The zip's records of numbers, and the one that states their byte order.
NUMBERS = re.compile(r"[^/]+/data/[^/]+")
BYTE_ORDER = re.compile(r"[^/]+/byteorder")

SAVE_TENSORS = "In the program that wrote it, save dense tensors alone: torch.save(model.state_dict(), NAME)."

NESTED = ("state_dict", "model")  # where training programs keep the model's tensors beside the optimizer's
WRAPPERS = ("module.", "_orig_mod.")  # prefixes that DataParallel and torch.compile add to every name
# Names in models that were ported from TensorFlow, which transformers renames on loading.
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

# What transformers ties again when it loads a model, and so leaves out of a file: `_tied_weights_keys`.
TIED_AGAIN = re.compile(
    r"(?P<owner>(?:.+?\.)??)(?:(?:cls\.)?predictions\.decoder\.(?:weight|bias)|lm_head\.(?:decoder\.)?(?:weight|bias)"
    r"|(?:encoder|decoder)\.(?:embed_tokens|word_embeddings)\.weight|entity_predictions\.decoder\.weight"
    r"|(?:generator_lm_head|output_projection|pred_layer\.proj|proj_out|vocab_projector)\.weight)"
)
# transformers writes a tied tensor under its embedding's name; relatives of RoBERTa have the head before it.
LM_HEAD = ".lm_head."

# Bytes that a tensor may take beyond those that are stored: a stride of 0 makes terabytes of a few.
MAX_EXPANSION = 1 << 30

# What safetensors calls each of torch's dtypes.
DTYPES: Mapping[str, str] = {
    **{np.dtype(dtype).name: name for name, dtype in OF_NUMPY.items()},
    **{dtype: name for name, dtype in OF_ML_DTYPES.items()},
    **{"complex64": "C64", "float8_e8m0fnu": "F8_E8M0"},
}


@dataclass(frozen=True, eq=False)
class PytorchFile(TensorFile):
    """A PyTorch file, seen as the safetensors file that it will be written as."""

    tensors: Mapping[str, torch.Tensor]  # by name, of any strides; tied ones once
    mapped: range | None  # the addresses at which the file is mapped into memory; None if its tensors were read

    def offset(self, name: str) -> int | None:
        """Return the file offset of a tensor's bytes; None if the file does not hold them as safetensors would."""
        tensor = self.tensors[name]
        return self._mapped_offset(tensor) if tensor.is_contiguous() else None

    def stored_range(self, name: str) -> tuple[int, int] | None:
        """Return where the file holds a tensor's numbers: first byte, and size in bytes; None if it was read."""
        tensor = self.tensors[name]
        offset = self._mapped_offset(tensor)
        reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return None if offset is None else (offset, reach * tensor.element_size())

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Read a copy of the bytes of a tensor as safetensors stores them, shape (size,)."""
        tensor, stored = self.tensors[name], self.stored_range(name)
        if stored is not None:
            # Read from the file, so that no page of the map stays in memory.
            data = torch.frombuffer(read_range(self.path, *stored), dtype=torch.uint8)
            tensor = data.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
        tensor = tensor.clone(memory_format=torch.contiguous_format)
        # Not reshape(-1): a single number may have any stride and be contiguous, and then cannot be seen as bytes.
        flat: NDArray[np.uint8] = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
        return flat

    def _mapped_offset(self, tensor: torch.Tensor) -> int | None:
        address = tensor.data_ptr() if tensor.numel() else 0
        return address - self.mapped.start if self.mapped and address in self.mapped else None


def unpickle(path: Path) -> tuple[Any, range | None]:
    """Load a PyTorch file, running nothing in it; also where it is mapped into memory, None if it was read whole."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):  # CVE-2025-32434, in spite of weights_only
        message = f"torch {torch.__version__} can be made to run code by a file that it loads."
        raise CheckpointError(message, "Upgrade it: pip install 'torch>=2.6'")
    addresses = set[int]()

    def note_address(storage: Any, location: str) -> Any:
        if storage.nbytes():
            addresses.add(storage.data_ptr())
        return storage

    try:
        offsets = _data_offsets(path) if zipfile.is_zipfile(path) else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says of odd files is in the error, or does not matter
            content = torch.load(path, map_location=note_address, weights_only=True, mmap=offsets is not None)
        if offsets is None:
            return content, None
        start = min(addresses, default=0) - min(offsets, default=0)
        if {address - start for address in addresses} != offsets:
            raise CheckpointError(f"{path} holds records of numbers that are not its tensors'.", SAVE_TENSORS)
        return content, range(start, start + path.stat().st_size)
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # hostile files raise whatever the code that they lead to raises
        what, unknown = f"{path} is no whole torch file that holds tensors alone", "Fetch or save it again."
        if asked := re.search(r"GLOBAL ([\w.]+)", str(error)):
            what = f"{path} asks for {asked[1].rstrip('.')}, which is no tensor; nothing in it was run"
            unknown = SAVE_TENSORS
        hint = f"Do not load it elsewhere unless you know who wrote it. {unknown}"
        raise CheckpointError(f"{what} ({type(error).__name__}).", hint) from error


def _data_offsets(path: Path) -> set[int] | None:
    """Return where in a zip file each tensor's numbers begin; None if they are in another byte order."""
    offsets = set[int]()
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            if record.compress_type != zipfile.ZIP_STORED:  # torch would take the compressed bytes for numbers
                raise CheckpointError(f"{path}: {record.filename!r} in it is compressed.", SAVE_TENSORS)
            if BYTE_ORDER.fullmatch(record.filename) and archive.read(record) != sys.byteorder.encode():
                return None
            if NUMBERS.fullmatch(record.filename) and record.file_size:
                lengths = read_range(path, record.header_offset + 26, 4)  # of the name and of what follows it
                skipped = 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
                offsets.add(record.header_offset + skipped)
    return offsets


def find_tensors(content: Any, path: Path) -> dict[str, torch.Tensor]:
    """Return the model's tensors under the names that transformers gives them, in their order.

    `content`, from the file at `path`, is a state dict or holds one. Each tensor has a dtype that safetensors has.
    """
    state = content
    if isinstance(content, dict) and not all(map(_is_tensor, content.values())):
        nested = (content.get(key) for key in NESTED)
        states = [one for one in nested if isinstance(one, dict) and one and all(map(_is_tensor, one.values()))]
        state = states[0] if states else content
    if not isinstance(state, dict) or not state:
        message = f"{path} holds no tensors by name, only an object of type {type(state).__name__}."
        raise CheckpointError(message, SAVE_TENSORS)
    for key, value in state.items():
        if fault := _fault(key, value):
            raise CheckpointError(f"{path}: {key!r:.200} is {fault}.", SAVE_TENSORS)
    prefix = ""
    while further := [part for part in WRAPPERS if all(key.startswith(prefix + part) for key in state)]:
        prefix += further[0]
    found: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        name = key.removeprefix(prefix)
        for old, new in RENAMED.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        if name in found:
            raise CheckpointError(f"{path} names {name!r} twice, by an old name and by a new one.", SAVE_TENSORS)
        found[name] = value.detach()
    return found


def _is_tensor(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def _fault(key: Any, value: Any) -> str | None:
    """Return why safetensors cannot hold something under a key; None if it can."""
    if not isinstance(key, str) or key == METADATA:
        return "a key that names no tensor"
    if not _is_tensor(value):
        return f"of type {type(value).__name__}, not a tensor"
    if value.is_meta or value.is_nested or value.is_quantized or value.layout != torch.strided:
        return f"no dense tensor ({value.layout}, {value.dtype}, on {value.device})"
    if str(value.dtype).removeprefix("torch.") not in DTYPES or value.is_conj() or value.is_neg():
        return f"a tensor of {value.dtype} or a view of one, which safetensors cannot hold"
    stored = value.untyped_storage().nbytes()
    is_expanded = value.numel() * value.element_size() > stored + MAX_EXPANSION
    return f"expanded from {stored:,} bytes to the shape {tuple(value.shape)}" if is_expanded else None


def as_tensor_file(path: Path, tensors: Mapping[str, torch.Tensor], mapped: range | None, *, ties: bool) -> PytorchFile:
    """Describe the safetensors file that tensors will be written as; with `ties`, those tied on loading stand once."""
    tied = _tied_names(tensors) if ties else set()
    kept = {name: tensor for name, tensor in tensors.items() if name not in tied}
    described: dict[str, Any] = {METADATA: {"format": "pt"}, **dict.fromkeys(kept)}
    start = 0
    # As safetensors does, the widest dtypes first, so that each stands at a multiple of its size.
    for name, tensor in sorted(kept.items(), key=lambda item: -item[1].element_size()):
        end = start + tensor.numel() * tensor.element_size()
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        described[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    try:
        header, entries = parse_header(json.dumps(described).encode())
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be written as safetensors: {error}.", SAVE_TENSORS) from None
    return PytorchFile(path, header, entries, 0, kept, mapped, is_in_memory=mapped is None)


def _tied_names(tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the names that are left out; of each tensor's names the first is kept, LM heads counted last."""
    kept: dict[Any, str] = {}
    tied = set()
    for name in sorted(tensors, key=lambda name: LM_HEAD in f".{name}"):
        tensor = tensors[name]
        # Tensors without numbers have no storage either, and so all have the same.
        first = kept.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype), name)
        again = TIED_AGAIN.fullmatch(name)
        # Whatever else shares its numbers is written out: nothing is tied again across models in a model.
        if first != name and tensor.numel() and again and first.startswith(again["owner"]):
            tied.add(name)
    return tied
