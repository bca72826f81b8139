"""Errors for folders without a config or without weights, with what to do instead."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from ctxextend.checkpoints import filenames
from ctxextend.checkpoints.config_file import CONFIG, stated_class
from ctxextend.checkpoints.exports import (
    file_error,
    find_exports,
    find_format,
    load_inside,
    only_exports_error,
)
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.checkpoints.source import CACHED_MODEL, Source, cached_id, points_outside
from ctxextend.checkpoints.training_files import find_parts, may_be_model
from ctxextend.errors import CheckpointError

WEIGHTS_SUFFIXES = (
    ".bin",
    ".ckpt",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".pt",
    ".pth",
    ".safetensors",
)


# BERT's own format of TensorFlow 1: its variables, and its config.
BERT_VARIABLES = "bert_model.ckpt"  # and an ending
BERT_CONFIG = "bert_config.json"
OLD_ENVIRONMENT = "transformers4"  # the folder of a virtual environment with transformers 4


@dataclass(frozen=True)
class ForeignWeights:
    """Weights that only transformers up to version 4 loads."""

    pattern: str  # of file names
    framework: str
    packages: str  # that it needs, as arguments of pip
    flag: str  # that `from_pretrained` needs


FOREIGN_WEIGHTS = (
    ForeignWeights(
        pattern="tf_model*.h5*",
        framework="tensorflow",
        packages="tensorflow tf-keras",
        flag="from_tf=True",
    ),
    ForeignWeights(
        pattern="flax_model*.msgpack*", framework="flax", packages="flax", flag="from_flax=True"
    ),
)


def no_config(folder: Path) -> CheckpointError:
    """Return the error for a folder without a config."""
    parts = find_parts(folder)
    if parts is not None:
        return parts
    cached = _hub_cache_error(folder)
    if cached is not None:
        return cached
    subfolders = _checkpoints_below(folder)
    if _has_mistral_config(folder):
        message = f"{folder} has no config.json, and no weights next to {filenames.PARAMS_FILE}."
        return CheckpointError(message, f"Download its {filenames.CONSOLIDATED} too.")
    hint = "Pass the folder of a transformers checkpoint, or a weights file with --model-type."
    if subfolders:
        listed = ", ".join(shlex.quote(name) for name in sorted(subfolders))
        hint = f"Found checkpoints in: {listed}. Pass one with --subfolder."
    return CheckpointError(f"{folder} has no config.json.", hint)


def _hub_cache_error(folder: Path) -> CheckpointError | None:
    """Return the error for a folder of the Hub cache above its snapshots; None for others."""
    root = folder.parent if folder.name == "snapshots" else folder
    if not root.name.startswith(CACHED_MODEL):
        return None
    message = f"{folder} is a folder of the Hub cache, and its checkpoints are below."
    hint = f"Pass the Hub id: {cached_id(root.name)}"
    snapshots = sorted(path.parent for path in root.glob("snapshots/*/config.json"))
    if snapshots:
        listed = ", ".join(shlex.quote(str(path)) for path in snapshots)
        hint = f"{hint}, or a snapshot: {listed}"
    return CheckpointError(message, hint)


def _has_mistral_config(folder: Path) -> bool:
    """Whether a folder has Mistral's params.json, and not that of another program."""
    from ctxextend.families.mistral_params import is_params

    try:
        return is_params(load_inside(folder, filenames.PARAMS_FILE))
    except CheckpointError:  # none, or an unreadable one
        return False


def _checkpoints_below(folder: Path) -> list[str]:
    """Return the names of the folders in a folder whose config states a model type."""
    names = list[str]()
    for pattern in ("*/config.json", "*/*/config.json"):
        for path in folder.glob(pattern):
            is_inside = path.is_file() and not points_outside(folder, path)
            if is_inside and "model_type" in load_object(path):
                names.append(path.parent.relative_to(folder).as_posix())
        if names:  # what is further down belongs to these
            break
    return names


def only_exports(
    folder: Path, variant: str | None, source: Source, names: Sequence[str]
) -> CheckpointError | None:
    """Return the error for a folder whose only weights are exports; None for other folders.

    Args:
        folder: The model's folder, without weights under the names that are read.
        variant: The variant that the user asks for.
        source: The checkpoint's folder and its origin.
        names: All files below the folder, also those that were not downloaded.
    """
    exports = find_exports(folder, names)
    if not exports:
        return None
    local = sorted(path.name for path in folder.iterdir())
    others = [name for name in local if find_format(folder, name) is None]
    if _readable(others) or _variants(names) or find_parts(folder) is not None:
        return None
    if filenames.first_weights(folder, None):
        return None
    if not (folder / "config.json").is_file() and _checkpoints_below(folder):
        return None
    model_class = _class_of(folder)
    foreign = _foreign(names)
    if foreign is not None:
        return _foreign_error(folder, model_class, source, foreign)
    if f"{BERT_VARIABLES}.index" in local and BERT_CONFIG in local:
        return _bert_error(folder, source)
    return only_exports_error(folder, exports, model_class, source.hub_id)


def unsupported_file(reference: str, path: Path) -> CheckpointError | None:
    """Return the error for a file that other programs made from a checkpoint; None for others."""
    folder = path.parent
    foreign = _foreign((path.name,))
    if foreign is not None:
        name = folder.resolve().name
        source = Source(reference=reference, kind="file", folder=folder, name=name)
        return _foreign_error(folder, _class_of(folder), source, foreign)
    row = find_format(folder, path.name)
    if row is None:
        return None
    return file_error(reference, path, row, _class_of(folder))


def _foreign(names: Sequence[str]) -> ForeignWeights | None:
    """Return the first row of weights that only transformers 4 loads; None if there are none."""
    for row in FOREIGN_WEIGHTS:
        if any(fnmatch(name, row.pattern) for name in names):
            return row
    return None


def _class_of(folder: Path) -> str | None:
    """Return the transformers class that the config in a folder states; None if it states none."""
    try:
        return stated_class(load_inside(folder, CONFIG))
    except CheckpointError:  # no config, or an unreadable one
        return None


def no_weights(folder: Path, variant: str | None, source: Source) -> CheckpointError:
    """Return the error for a folder without weights that can be read.

    Args:
        folder: The model's folder.
        variant: The variant that the user asks for.
        source: The checkpoint's folder and its origin.
    """
    local = sorted(path.name for path in folder.iterdir())
    names = (*local, *source.not_downloaded)
    others = [name for name in local if Path(name).suffix in WEIGHTS_SUFFIXES]
    readable = _readable(others)
    variants = _variants(names)
    if not readable and not variants:
        parts = find_parts(folder)
        if parts is not None:
            return parts
    single = filenames.with_variant(filenames.SINGLE_FILE, variant)
    pytorch = filenames.with_variant("pytorch_model.bin", variant)
    message = f"{folder} has no {single}, {pytorch} or shard index"
    if others:
        message += f", only {', '.join(others)}"
    return CheckpointError(f"{message}.", _hint(folder, variant, variants, readable))


def _hint(
    folder: Path, variant: str | None, variants: Sequence[str], readable: Sequence[str]
) -> str:
    """Say which weights to use instead of the missing ones.

    Args:
        folder: The model's folder.
        variant: The variant that the user asks for.
        variants: Those that the folder has.
        readable: Names of other weights files that may be passed.
    """
    if variant is not None and filenames.first_weights(folder, None):
        return "Remove --variant, or download the missing file."
    if variants:
        flags = " or ".join(f"--variant {name}" for name in variants)
        return f"Choose one: {flags}."
    if readable:
        return f"Pass the file itself, {folder / readable[0]}, or download the missing one."
    advice = "If --edit-only wrote the folder, run the command that it printed."
    return f"Download the missing file. {advice}"


def _readable(names: Sequence[str]) -> list[str]:
    """Return the names of files that may be a model, and can be passed by themselves."""
    return [name for name in names if name.endswith(filenames.READABLE) and may_be_model(name)]


def _variants(names: Sequence[str]) -> list[str]:
    """Return the variants among names of weights files."""
    variants = dict[str, None]()
    for name in names:
        variant = filenames.variant_of(name)
        if variant is not None:
            variants[variant] = None
    return list(variants)


def _foreign_error(
    folder: Path, model_class: str | None, source: Source, foreign: ForeignWeights
) -> CheckpointError:
    """Return the error for weights of another framework, with a command that converts them."""
    class_name = model_class or "AutoModel"
    name = source.hub_id or str(folder)
    output = f"{source.name}-safetensors"
    load = f"transformers.{class_name}.from_pretrained({name!r}, {foreign.flag})"
    code = f"import transformers; {load}.save_pretrained({output!r})"
    message = (
        f"{folder} has only {foreign.framework} weights, which transformers 5 no longer reads."
    )
    hint = _in_old_transformers("them", foreign.packages, code)
    return CheckpointError(message, hint)


def _bert_error(folder: Path, source: Source) -> CheckpointError:
    """Return the error for variables of TensorFlow 1 of BERT, with a command that converts them."""
    # As `convert_bert_original_tf_checkpoint_to_pytorch` of transformers 4 does.
    lines = (
        "import transformers",
        f"config = transformers.BertConfig.from_json_file({str(folder / BERT_CONFIG)!r})",
        "model = transformers.BertForPreTraining(config)",
        f"transformers.load_tf_weights_in_bert(model, config, {str(folder / BERT_VARIABLES)!r})",
        f"model.save_pretrained({f'{source.name}-safetensors'!r})",
    )
    code = "; ".join(lines)
    message = (
        f"{folder} has BERT's own format of TensorFlow 1, which transformers 5 no longer reads."
    )
    hint = _in_old_transformers("it", "tensorflow tf-keras", code)
    return CheckpointError(message, hint)


def _in_old_transformers(converted: str, packages: str, code: str) -> str:
    """Return the commands that run code in transformers 4.

    They make an environment for it, because in that of ctxextend it would replace transformers 5.
    """
    commands = (
        f"python -m venv {OLD_ENVIRONMENT}",
        f'{OLD_ENVIRONMENT}/bin/pip install "transformers<5" {packages} torch',
        f"{OLD_ENVIRONMENT}/bin/python -c {shlex.quote(code)}",
    )
    return f"Convert {converted} in a separate environment: {' && '.join(commands)}"
