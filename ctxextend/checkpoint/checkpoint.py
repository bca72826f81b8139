"""The one value that a checkpoint of any format opens to: its config, weights and other files."""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ctxextend.checkpoint.copy import Fingerprint, file_fingerprint, open_source, reading
from ctxextend.checkpoint.features import Refusal
from ctxextend.checkpoint.filenames import variant_of
from ctxextend.checkpoint.json_edit import Edit, load_object, read_text
from ctxextend.checkpoint.safetensors_file import (
    FLOATS,
    TensorEntry,
    TensorFile,
    check_dtype,
    numpy_dtype,
)
from ctxextend.checkpoint.source import Source
from ctxextend.errors import CheckpointError

if TYPE_CHECKING:
    from ctxextend.checkpoint.writing import Layout

CONFIG = "config.json"
MODULES = "modules.json"

SAMPLE = 4096  # bytes per sample of a fingerprint: the start, the middle and the end of a tensor
HALF_DTYPES = ("BF16", "F16")

# How the names of transformers classes with an LM head end.
LM_CLASSES = (
    "LM",
    "LMHeadModel",
    "HeadsModel",
    "EncoderDecoderModel",
    "ForPreTraining",
    "ForConditionalGeneration",
)
# Parts of tensor names of LM heads, for configs that state no class.
LM_TENSORS = r"lm_head\.|predictions\.|vocab_projector\.|embed_out\."


@dataclass(frozen=True)
class Weights:
    """The weights files of a source, and the names and the index that an output gives them."""

    files: Mapping[str, TensorFile]  # by their names in an output, in source order
    index: Mapping[str, Any] | None = None  # shard index of an output; None for a single file
    index_file: str = ""  # the name of this index
    is_index_new: bool = False  # whether the source has another index, or none
    config: Mapping[str, Any] | None = None  # that a nanoGPT file contains
    # The file and the header entry of every tensor by name, in file order.
    file_of: Mapping[str, TensorFile] = field(init=False)
    entries: Mapping[str, TensorEntry] = field(init=False)
    is_remote: bool = field(init=False)  # whether only headers of its files were downloaded
    # Whether its tensors have names with parts of a wrapper, such as ``_orig_mod.``, which are
    # removed here: transformers loads none.
    is_wrapped: bool = field(init=False)

    def __post_init__(self) -> None:
        file_of = dict[str, TensorFile]()
        entries = dict[str, TensorEntry]()
        is_wrapped = False
        for file in self.files.values():
            file_of |= dict.fromkeys(file.entries, file)
            entries |= file.entries
            for stored, name in file.names.items():
                is_wrapped |= stored.count(".") != name.count(".")
        values = {
            "file_of": file_of,
            "entries": entries,
            "is_remote": any(file.is_remote for file in self.files.values()),
            "is_wrapped": is_wrapped,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def read(self, name: str, dtypes: Collection[str] = FLOATS) -> NDArray[Any]:
        """Read a tensor, in its shape and with the `numpy_dtype` of the file.

        Raises:
            CheckpointError: It cannot be read, or has another dtype than these.
        """
        file = self.file_of[name]
        entry = file.entries[name]
        check_dtype(file, name, dtypes)
        return file.read_bytes(name).view(numpy_dtype(entry.dtype)).reshape(entry.shape)

    @property
    def first_file(self) -> TensorFile:
        """The only file, or the first shard."""
        return next(iter(self.files.values()))

    @property
    def variant(self) -> str | None:
        """The variant, such as ``fp16``; None for plain weights."""
        first_name = next(iter(self.files))
        return variant_of(PurePosixPath(first_name).name)

    @property
    def is_half(self) -> bool:
        """Whether most values are in half precision."""
        counts = Counter[bool]()
        for entry in self.entries.values():
            counts[entry.dtype in HALF_DTYPES] += math.prod(entry.shape)
        return counts[True] > counts[False]

    def fingerprint(self) -> str:
        """Return a SHA-256 of the headers and of the start, middle and end of every tensor.

        Each of the three has 4 KiB. Tensors of up to 12 KiB are read in full. In larger ones, a
        change between the samples is not detected.

        Raises:
            CheckpointError: A file cannot be read.
        """
        import hashlib  # imported at use: planning needs no hash, and loading OpenSSL is slow

        digest = hashlib.sha256()
        for file in self.files.values():
            digest.update(json.dumps(file.header).encode())
            with open_source(file.path) as opened, reading(file.path):
                for name, entry in file.entries.items():
                    size = entry.size
                    starts = [0]
                    if size > 3 * SAMPLE:
                        last = size - SAMPLE
                        starts = [0, last // 2, last]
                        size = SAMPLE
                    offset = file.offset(name)
                    if offset is None:
                        content = file.read_bytes(name).data
                        for start in starts:
                            digest.update(content[start : start + size])
                        continue
                    for start in starts:
                        opened.seek(offset + start)
                        digest.update(opened.read(size))
        return digest.hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """A model folder with its config and the headers of its weights.

    File names are relative to its root.
    """

    source: Source
    model: PurePosixPath  # the model's folder: "." or sentence-transformers' subfolder
    config: Mapping[str, Any]  # empty if there is none, as for adapters
    weights: Weights
    generated: Mapping[str, str]  # text files that an output needs but the source lacks
    copied: tuple[str, ...]  # all files to copy, config.json included, except the weights
    omitted: Mapping[str, str]  # skipped files, each with the reason
    fingerprints: Mapping[str, Fingerprint]  # of its files, taken before they are read
    adapter_of: str | None  # the base model of a PEFT adapter; None for other checkpoints
    # Parsed JSON files by name, so that a plan reads each only once, before anything is written.
    objects: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)
    config_name: str = CONFIG  # or that of a weights file, which states its config itself
    # Of a checkpoint that consists of one file, which its output does too; empty for a folder.
    file_suffix: str = ""
    engine: str | None = None  # the only engine that reads it, as ``--for`` names it; None: many do
    recipe: str | None = None  # the text of its recipe, which may be anything; None without one
    facts: tuple[str, ...] = ()  # what else to know of its files
    # What cannot be done with it, by feature; see `features`.
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    # The content of a params.json of Mistral, if it has one. vLLM 0.33 reads it before config.json,
    # so that no output has it: `get_config` of https://github.com/vllm-project/vllm/blob/v0.33.0/
    # vllm/transformers_utils/config.py.
    params: Mapping[str, Any] | None = None
    root: Path = field(init=False)  # the folder
    config_file: str = field(init=False)  # the file that states the config
    # Whether it has a config.json, which must state the table's length.
    has_config: bool = field(init=False)
    model_class: str | None = field(init=False)  # the transformers class in its config, if any
    no_lm: str = field(init=False)  # why it is not a language model; empty if it is one
    # Whether it is of a model that generates text, as far as its config tells.
    generates: bool = field(init=False)
    # The paths that an output must not overlap: the folder, unless only a single file is read, and
    # that file.
    protected: tuple[Path, ...] = field(init=False)
    # All source files that an output contains, by their names in it.
    files: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        config_file = (self.model / self.config_name).as_posix()
        weights = self.weights
        files = {*self.copied, *weights.files}
        if weights.index is not None and weights.index_file not in self.generated:
            files.add(weights.index_file)
        root = self.source.folder
        protected = [root / (self.source.file or "")]
        if self.copied:
            protected.append(root)
        model_class = stated_class(self.config)
        no_lm = no_lm_head(model_class)
        if model_class is None and re.search(LM_TENSORS, "\n".join(weights.entries)):
            no_lm = ""
        if MODULES in self.copied:
            no_lm = "it is a sentence encoder, and copies retrieve best on long texts"
        generates = self.config.get("is_encoder_decoder") or self.config.get("is_decoder")
        values = {
            "root": root,
            "config_file": config_file,
            "has_config": config_file in (*self.copied, *self.generated),
            "model_class": model_class,
            "no_lm": no_lm,
            # A sentence encoder generates nothing, whatever its config says.
            "generates": bool(generates or not no_lm) and MODULES not in self.copied,
            "protected": tuple(protected),
            "files": frozenset(files),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def relative(self, file: TensorFile) -> str:
        """Return a weights file's path relative to the root."""
        return file.path.relative_to(self.root).as_posix()

    def text(self, name: str) -> str:
        """Return the content of a text file.

        Raises:
            CheckpointError: The file cannot be read, or is not UTF-8 text.
        """
        if name in self.generated:
            return self.generated[name]
        return read_text(self.root / name)

    def read_object(self, name: str) -> Mapping[str, Any]:
        """Return the content of a small file that contains one JSON object.

        Raises:
            CheckpointError: The file cannot be read, or contains something else.
        """
        if name not in self.objects:
            self.objects[name] = load_object(self.root / name)
        return self.objects[name]

    def check(self, *requested: str) -> None:
        """Check that features can be had; see `features`.

        Raises:
            CtxextendError: One cannot.
        """
        for feature in requested:
            if feature in self.refused:
                message, hint, error = self.refused[feature]
                raise error(message.format(name=self.source.reference), hint)

    def file_edits(self, edits: Sequence[Edit]) -> tuple[Edit, ...]:
        """Return the edits to its files that change the config, and other files, so.

        Raises:
            ResizeError: A file cannot state a value.
        """
        return tuple(edits)

    def layout_of_file(
        self, values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], recipe: bytes
    ) -> "Layout":
        """Return the layout of an output that is one file, of a format that can be one.

        Args:
            values: Changed values, by key of the edits of `file_edits`.
            shapes: Those of changed tensors, by name.
            recipe: The text of its recipe.
        """
        raise NotImplementedError

    def check_unchanged(self) -> None:
        """Check that no file changed since the checkpoint was opened.

        Raises:
            CheckpointError: A file changed.
        """
        for name, before in self.fingerprints.items():
            if name in self.omitted or name in self.source.remote:
                continue
            now = file_fingerprint(self.root / name)
            is_same = before.changed == now.changed
            # A new or removed hard link changes the change time too, but not the content.
            if max(before.names, now.names) > 1:
                is_same = before.inode == now.inode
            if not is_same or (before.size, before.modified) != (now.size, now.modified):
                message = f"{self.root / name} changed while it was read."
                raise CheckpointError(message, "Run the command again once the file is complete.")


def stated_class(config: Mapping[str, Any]) -> str | None:
    """Return the transformers class that a config states; None if it states none."""
    stated = config.get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    # The name is untrusted, and is shown in commands that users paste.
    if isinstance(first, str) and first.isidentifier() and first.isascii():
        return first
    return None


def no_lm_head(model_class: str | None) -> str:
    """Say that a transformers class has no LM head, or that none is stated; empty if it has one."""
    if model_class is None:
        return f"{CONFIG} states no model class, and the weights have no LM head"
    if model_class.endswith(LM_CLASSES):
        return ""
    return f"{model_class} has no LM head"


def layer_pattern(name: str) -> str:
    """Return a tensor name with ``*`` for the numbers of its layers, as recipes list names."""
    return re.sub(r"\b[0-9]+\b", "*", name)
