"""A GGUF file as a checkpoint: its metadata are its config, and no other files belong to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ctxextend.checkpoint.checkpoint import Checkpoint, Weights
from ctxextend.checkpoint.copy import file_fingerprint
from ctxextend.checkpoint.features import GGUF, GGUF_METHODS, GGUF_ROUTE, SCALED_SETTINGS, Refusal
from ctxextend.checkpoint.filenames import GGUF_SUFFIX
from ctxextend.checkpoint.gguf_config import ARCHITECTURES, ROPE_KEYS, in_32_bits, read_config
from ctxextend.checkpoint.gguf_header import RECIPE_KEY, GgufFile, open_gguf
from ctxextend.checkpoint.gguf_rewrite import plan_gguf_layout
from ctxextend.checkpoint.json_edit import Edit
from ctxextend.checkpoint.source import Source
from ctxextend.checkpoint.writing import Layout
from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.tables.rope_types import FULL_LAYERS, NEW, TYPE

ARCHITECTURE = "general.architecture"
# Tensors of factors that divide frequencies: of llama3 settings, and of longrope ones.
FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# Keys after the name of the architecture: the first name of the factor, and a multiplier of all
# cosines and sines, in addition to that of yarn settings.
OTHER_SCALES = ("rope.scale_linear", "rope.scaling.attn_factor")


@dataclass(frozen=True)
class GgufCheckpoint(Checkpoint):
    """A checkpoint that consists of a GGUF file."""

    def file_edits(self, edits: Sequence[Edit]) -> tuple[Edit, ...]:
        """Return the edits to the metadata that change the config so.

        Raises:
            ResizeError: The file cannot state a length.
        """
        values = gguf_file(self).values
        stated = list[Edit]()
        for edit in edits:
            key = edit.key
            if edit.path[0] == NEW:
                key = f"{values[ARCHITECTURE]}.{ROPE_KEYS[edit.path[-1]]}"
            elif edit.after >= 1 << 32:
                raise ResizeError("A GGUF file states a length of 32 bits.", "Use a shorter one.")
            path = tuple(key.split("."))
            before = in_32_bits(values.get(key))
            stated.append(Edit(self.config_file, path, before, in_32_bits(edit.after)))
        return tuple(stated)

    def layout_of_file(
        self, values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], recipe: bytes
    ) -> Layout:
        """Return the layout of the file with other metadata, and another table."""
        return plan_gguf_layout(gguf_file(self), values, shapes, recipe)


def gguf_file(checkpoint: Checkpoint) -> GgufFile:
    """Return the GGUF file that a checkpoint consists of."""
    file = checkpoint.weights.first_file
    assert isinstance(file, GgufFile)
    return file


def open_gguf_checkpoint(source: Source) -> GgufCheckpoint:
    """Open a GGUF file as a checkpoint without other files.

    Raises:
        CheckpointError: The file cannot be read, is malformed or one of several.
        UnsupportedModelError: Its architecture is not known.
    """
    file_name = str(source.file)
    path = source.folder / file_name
    fingerprint = file_fingerprint(path)  # before it is read
    file = open_gguf(path)
    values = file.values
    if values.get("split.count", 1) != 1:
        hint = "Merge them with llama.cpp: llama-gguf-split --merge FIRST.gguf MERGED.gguf"
        raise CheckpointError(f"{path} is one of several files of a model.", hint)
    name = str(values.get(ARCHITECTURE))
    config = read_config(name, values, file.entries.keys(), file_name)
    settings = config.get(NEW, {})
    kind = settings.get(FULL_LAYERS, settings).get(TYPE)  # None without rotary positions
    # What llama.cpp applies in addition to rotary settings.
    others = [tensor for tensor in file.entries if tensor.endswith(FACTOR_TENSORS)]
    others += [key for key in OTHER_SCALES if config[name].get(key, 1) != 1]
    facts = [f"{name} applies too: the wavelengths are those without it." for name in others[:1]]
    refused = dict(GGUF)
    if kind is not None:
        refused |= _refused_methods(name, kind, others)
    return GgufCheckpoint(
        source=source._replace(name=path.stem),
        model=PurePosixPath(),
        config=config,
        weights=Weights(files={file_name: file}),
        generated={},
        copied=(),
        omitted={},
        fingerprints={file_name: fingerprint},
        adapter_of=None,
        config_name=file_name,
        file_suffix=GGUF_SUFFIX,
        engine="llama.cpp",
        recipe=values.get(RECIPE_KEY),
        facts=tuple(facts),
        refused=refused,
    )


def _refused_methods(name: str, kind: str, others: Sequence[str]) -> Mapping[str, Refusal]:
    """Return the methods that do not scale the rotary settings of a file.

    Args:
        name: Its architecture.
        kind: The rope type of its settings, which scaled ones keep.
        others: What llama.cpp applies in addition to the settings.
    """
    row = ARCHITECTURES[name]
    methods = row.get("methods", GGUF_METHODS)
    cause = row.get("reason", "")
    if others:
        cause = f"{others[0]} applies too, and how both are scaled was not trained"
    if others or kind not in ("default", *methods):
        methods = ()
    hint = f"Use --method {' or '.join(methods)}."
    names = [f"--method {method}" for method in GGUF_METHODS if method not in methods]
    if not methods:
        hint = GGUF_ROUTE
        names.append(SCALED_SETTINGS)
    message = f"No such method scales {kind} settings of architecture {name} in {{name}}: {cause}."
    return dict.fromkeys(names, Refusal(message, hint))
