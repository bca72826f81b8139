"""A GGUF file as a checkpoint: its metadata are its config, and no other files belong to it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.checkpoint import features
from ctxextend.checkpoint.copy import file_fingerprint
from ctxextend.checkpoint.features import GGUF_METHODS, GGUF_ROUTE, Refusal
from ctxextend.checkpoint.filenames import GGUF_SUFFIX
from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.checkpoint.gguf_config import (
    ARCHITECTURES,
    ATTENTION,
    FACTOR_TENSORS,
    FULL_LAYERS,
    MAX_LENGTH,
    NAMESPACE,
    WINDOW,
    read_config,
    shortest,
    state_config,
)
from ctxextend.checkpoint.gguf_header import GgufFile, open_gguf
from ctxextend.checkpoint.json_edit import Edit
from ctxextend.checkpoint.source import Source
from ctxextend.checkpoint.weights import Weights
from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.tables.rope_types import NEW, TYPE

SPLIT_COUNT = "split.count"
# The key of the recipe of a resize; llama.cpp ignores keys that it does not know.
RECIPE_KEY = "ctxextend.recipe"


@dataclass(frozen=True)
class GgufCheckpoint(Checkpoint):
    """A checkpoint that consists of a GGUF file."""

    def file_edits(self, edits: Sequence[Edit]) -> tuple[Edit, ...]:
        """Return the edits to the metadata that change the config so.

        Raises:
            ResizeError: The file cannot state a length.
        """
        after = deepcopy(dict(self.config))
        for edit in edits:
            values = after
            for key in edit.path[:-1]:
                values = values[key]
            values[edit.path[-1]] = edit.after
        stated = gguf_file(self).values
        changed = list[Edit]()
        for key, value in state_config(self.config, after, stated):
            before = stated.get(key)
            if isinstance(before, float):
                before = shortest(before)
            if value == before:
                continue
            if isinstance(value, int) and value >= MAX_LENGTH:
                message = f"{key} {value}: a GGUF file states a length of 32 bits."
                raise ResizeError(message, f"Use a length below {MAX_LENGTH}.")
            changed.append(Edit(self.config_file, tuple(key.split(".")), before, value))
        return tuple(changed)


def gguf_file(checkpoint: Checkpoint) -> GgufFile:
    """Return the GGUF file that a checkpoint consists of."""
    file = checkpoint.weights.first_file
    assert isinstance(file, GgufFile)
    return file


def open_gguf_checkpoint(source: Source) -> GgufCheckpoint:
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
    values = file.values
    if values.get(SPLIT_COUNT, 1) != 1:
        merged = path.name.partition("-00001-of-")[0].removesuffix(GGUF_SUFFIX)
        raise CheckpointError(
            f"{path} is one of {values[SPLIT_COUNT]} files that a model was split into.",
            f"Merge them with llama.cpp: llama-gguf-split --merge FIRST.gguf {merged}{GGUF_SUFFIX}",
        )
    config = read_config(values, file.entries.keys(), source.file)
    additions = _additions(config, file)
    types = Counter(entry.dtype for entry in file.entries.values())
    counts = ", ".join(f"{count} {dtype}" for dtype, count in types.most_common())
    recipe = values.get(RECIPE_KEY)
    return GgufCheckpoint(
        source=source._replace(name=Path(source.file).stem),
        model=PurePosixPath(),
        config=config,
        weights=Weights(files={source.file: file}),
        generated={},
        copied=(),
        omitted={},
        fingerprints={source.file: fingerprint},
        adapter_of=None,
        config_name=source.file,
        file_suffix=GGUF_SUFFIX,
        engine="llama.cpp",
        recipe=None if recipe is None else str(recipe),
        facts=(
            f"{path.name}: GGUF version {file.version}, tensors: {counts or 'none'}.",
            *(f"{addition} too: what is shown is without it." for addition in additions),
        ),
        refused={**features.GGUF, **_refused(config, file, additions)},
    )


def _additions(config: Mapping[str, Any], file: GgufFile) -> list[str]:
    """Return what llama.cpp applies in addition to rotary settings, as clauses."""
    settings = config.get(NEW)
    if settings is None:
        return []
    additions = list[str]()
    factors = [name for name in file.entries if name.endswith(FACTOR_TENSORS)]
    if factors:
        additions.append(f"{factors[0]} divides the frequencies")
    key = f"{config['model_type'].removeprefix(NAMESPACE)}.{ATTENTION}"
    kind = settings.get(FULL_LAYERS, settings)[TYPE]
    if file.values.get(key, 1) != 1 and kind != "yarn":
        additions.append(f"{key} multiplies cosines and sines")
    return additions


def _refused(
    config: Mapping[str, Any], file: GgufFile, additions: Sequence[str]
) -> dict[str, Refusal]:
    """Return the methods that do not apply to the rotary settings of a file."""
    if NEW not in config:
        return {}
    name = config["model_type"].removeprefix(NAMESPACE)
    row = ARCHITECTURES[name]
    methods = row.get("methods", GGUF_METHODS)
    reason = row.get("reason", "")
    refused = dict[str, Refusal]()
    for method in GGUF_METHODS:
        if method not in methods:
            message = f"--method {method} does not apply to architecture {name}: {reason}."
            usable = f"Use --method {' or '.join(methods)}." if methods else GGUF_ROUTE
            refused[f"--method {method}"] = Refusal(message, usable)
    if row.get("window_base") == "shared" and file.values.get(f"{name}.{WINDOW}"):
        message = (
            f"--method theta does not apply to architecture {name} with a sliding window: "
            "llama.cpp gives the layers that have one the base of the others, and they keep theirs."
        )
        refused["--method theta"] = Refusal(message, "Use --method yarn or linear.")
    kind = config[NEW].get(FULL_LAYERS, config[NEW])[TYPE]
    cause = ""
    if additions:
        cause = f"{additions[0]} too, and how both are scaled was not trained"
    elif kind not in ("default", *methods):
        cause = (
            f"it has {kind} settings, and those of architecture {name} cannot be scaled: {reason}"
        )
    if cause:
        names = [features.SCALE, *(f"--method {method}" for method in GGUF_METHODS)]
        refused |= dict.fromkeys(names, Refusal(f"{{name}}: {cause}.", GGUF_ROUTE, ResizeError))
    return refused
