"""Open a model folder: its config, its weights, and its other files, copied or skipped."""

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from ctxextend.checkpoint import features, filenames
from ctxextend.checkpoint.checkpoint import CONFIG, MODULES, Checkpoint, Weights
from ctxextend.checkpoint.copy import Fingerprint, file_fingerprint, open_source, reading
from ctxextend.checkpoint.features import Refusal
from ctxextend.checkpoint.filenames import SAFETENSORS, SINGLE_FILE, stays_inside
from ctxextend.checkpoint.formats import source_recipe
from ctxextend.checkpoint.json_edit import load_object, parse_json, read_text
from ctxextend.checkpoint.safetensors_file import (
    COMPILED,
    MODULE,
    TensorFile,
    open_safetensors,
    plain_names,
)
from ctxextend.checkpoint.source import (
    FOLDER,
    ConfigCheck,
    Source,
    has_file,
    look_at,
)
from ctxextend.errors import CheckpointError

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_PREFIX = "base_model.model."  # PEFT's prefix of the base model's module names
# Keys that every params.json of a Mistral model has; many programs write a file of that name.
MISTRAL_KEYS = {"dim", "n_layers", "hidden_dim"}


def open_checkpoint(
    source: Source, variant: str | None = None, check: ConfigCheck = lambda config: None
) -> Checkpoint:
    """Read a checkpoint's config and its weights' headers, and list the other files to copy.

    Args:
        source: A folder, a weights file in one, or a file that is a whole checkpoint.
        variant: The variant of the weights, such as ``fp16``; None for plain weights.
        check: Is called with the config, and may raise.

    Raises:
        CheckpointError: A file is missing, malformed or unreadable.
        UnsupportedModelError: The architecture of a GGUF file is not known.
    """
    if filenames.is_gguf(source.file):
        from ctxextend.checkpoint.gguf_checkpoint import open_gguf_checkpoint

        return open_gguf_checkpoint(source)
    root = source.folder
    with reading(root):
        problems, fingerprints = _list_files(source)  # before any is read
        model, config = _read_config(source)
        if config:
            check(config)
        path = _find_weights(source, model, config, problems, variant)
        weights = open_weights(source, path, model, config)
        read = {path.relative_to(root).as_posix()}
        read |= {file.path.relative_to(root).as_posix() for file in weights.files.values()}
        for name in read - fingerprints.keys():  # below a linked folder
            fingerprints[name] = file_fingerprint(root / name)
        for name, remote in source.remote.items():
            fingerprints[name] = Fingerprint(size=remote.data_start + remote.tensor_bytes)
        copied = list[str]()
        omitted = dict[str, str]()
        for name, problem in {**problems, **dict.fromkeys(source.not_downloaded, "")}.items():
            if name in read:
                continue
            file = PurePosixPath(name)
            reason = filenames.skip_reason(file, model)
            # Next to a weights file that was passed, other ones may be of any model.
            is_alike = source.file is not None and file.suffix == PurePosixPath(source.file).suffix
            if is_alike and len(file.parts) == 1 and not filenames.is_known(file):
                reason = reason or "other weights, not rewritten"
            reason = reason or problem
            if reason:
                omitted[name] = reason
            elif name in problems:
                copied.append(name)
        params = None
        if filenames.PARAMS_FILE in copied:
            with suppress(CheckpointError):
                content = load_object(root / filenames.PARAMS_FILE)
                if content.keys() >= MISTRAL_KEYS:
                    params = content
                    copied.remove(filenames.PARAMS_FILE)
                    omitted[filenames.PARAMS_FILE] = "Mistral's own format, not rewritten"
        notes = list(source.notes)
        generated = dict[str, str]()
        if weights.is_index_new:
            generated[weights.index_file] = json.dumps(weights.index, indent=2) + "\n"
        if weights.config is not None:
            from ctxextend.checkpoint.nanogpt import ASSUMED_ACTIVATION

            config = weights.config
            generated[CONFIG] = json.dumps(config, indent=2) + "\n"
            notes.append(ASSUMED_ACTIVATION)
        recipe = None
        if filenames.RECIPE_FILE in copied:
            with suppress(CheckpointError):
                recipe = source_recipe(source)
        adapter_of = None
        if path.name.startswith("adapter_model."):
            adapter_of = "its base model"
            if has_file(source, root / ADAPTER_CONFIG):
                stated = load_object(root / ADAPTER_CONFIG).get("base_model_name_or_path")
                adapter_of = str(stated or adapter_of)
        refused: Mapping[str, Refusal] = {}
        if adapter_of:
            refused = features.ADAPTER
        elif not config:
            refused = features.WITHOUT_CONFIG
        engine = None
        quantization = (config or {}).get("quantization")
        if isinstance(quantization, Mapping) and {"group_size", "bits"} <= quantization.keys():
            # mlx-lm gives tensors other shapes and dtypes: ``quantize_model`` of its utils.py.
            engine = "mlx"
            refused = features.MLX
        return Checkpoint(
            source=source._replace(notes=tuple(notes)),
            model=model,
            config=config or {},
            weights=weights,
            generated=generated,
            copied=tuple(copied),
            omitted=omitted,
            fingerprints=fingerprints,
            adapter_of=adapter_of,
            recipe=recipe,
            refused=refused,
            engine=engine,
            params=params,
        )


def _list_files(source: Source) -> tuple[dict[str, str], dict[str, Fingerprint]]:
    """Return why each file is not read, empty if it is a regular file, and its fingerprint.

    They are the files below the root, and ignored or linked folders, sorted per folder. If a file
    without a config was passed, others in its folder do not belong to it.
    """
    paths = sorted(source.folder.iterdir())
    if source.file is not None:
        foreign = filenames.find_foreign((source.file,))
        if foreign is not None:
            _, row = foreign
            raise CheckpointError(f"{source.reference} is {row.kind}.", row.hint)
        if not {CONFIG, ADAPTER_CONFIG, MODULES}.intersection(path.name for path in paths):
            paths = [source.folder / source.file]
    problems = dict[str, str]()
    fingerprints = dict[str, Fingerprint]()
    for path in paths:  # which grow by those in folders
        problem, fingerprint = look_at(source, path)
        if problem == FOLDER and path.name not in filenames.IGNORED_NAMES:
            paths += sorted(path.iterdir())
            continue
        name = path.relative_to(source.folder).as_posix()
        problems[name] = problem
        fingerprints[name] = fingerprint
    return problems, fingerprints


def _read_config(source: Source) -> tuple[PurePosixPath, Mapping[str, Any] | None]:
    """Return the model's folder, and its config: empty for an adapter, None if there is none."""
    root = source.folder
    model = PurePosixPath()
    config = None
    if has_file(source, root / CONFIG):
        config = load_object(root / CONFIG)
    # In old folders, the config.json in the root contains only sentence-transformers' version.
    if "model_type" not in (config or {}) and has_file(source, root / MODULES):
        modules = load_modules(root / MODULES)
        folders = [
            str(module.get("path", ""))
            for module in modules
            if str(module.get("type", "")).endswith("Transformer")
        ]
        if len(folders) != 1 or not filenames.stays_inside(folders[0]):
            message = (
                f"{root / MODULES} lists no Transformer module in a subfolder, and {root} has no "
                "config.json."
            )
            raise CheckpointError(
                message, "Pass the folder of a transformers or sentence-transformers checkpoint."
            )
        model = PurePosixPath(folders[0])
        config = None
        if has_file(source, root / model / CONFIG):
            config = load_object(root / model / CONFIG)
    if config is None and has_file(source, root / ADAPTER_CONFIG):
        config = {}  # the adapter's base model is elsewhere
    return model, config


def _find_weights(
    source: Source,
    model: PurePosixPath,
    config: Mapping[str, Any] | None,
    files: Collection[str],
    variant: str | None,
) -> Path:
    """Return the weights file or shard index to read.

    Raises:
        CheckpointError: There is none, or no config.
    """
    folder = source.folder / model
    name = source.file
    if name is not None:
        # An index that lists the file as a shard.
        for path in sorted(folder.glob("*.index*.json")):
            if has_file(source, path):
                weight_map = load_object(path).get("weight_map")
                if isinstance(weight_map, dict) and source.file in weight_map.values():
                    name = path.name
                    break
    elif config is not None:
        local = filenames.names_below((*files, *source.remote), model)
        name = filenames.first_weights(local, variant)
    elif variant is None and has_file(source, folder / filenames.NANOGPT_FILE):
        name = filenames.NANOGPT_FILE
    else:
        _refuse_without_config(source, files)
    if name is None or not (name in source.remote or has_file(source, folder / name)):
        _refuse_without_weights(source, model, files, variant)
    return folder / name


def _refuse_without_weights(
    source: Source, model: PurePosixPath, files: Collection[str], variant: str | None
) -> NoReturn:
    folder = source.folder / model
    names = filenames.names_below((*files, *source.not_downloaded), model)
    single = filenames.with_variant(SINGLE_FILE, variant)
    message = f"{folder} has no {single}, pytorch_model.bin or shard index"
    variants = dict.fromkeys(filter(None, map(filenames.variant_of, names)))
    if variants or variant is not None:
        flags = " or ".join(f"--variant {name}" for name in variants)
        raise CheckpointError(f"{message}.", f"Choose one: {flags or 'no --variant'}.")
    hint = (
        "Download the missing file, or pass a file itself. If --edit-only wrote the folder, run "
        "the command that it printed."
    )
    _refuse_incomplete(message, hint, names)


def _refuse_without_config(source: Source, files: Iterable[str]) -> NoReturn:
    folder = source.folder
    hint = "Pass the folder of a transformers checkpoint, or a weights file with --model-type."
    subfolders = sorted(shlex.quote(path.parent.name) for path in folder.glob("*/config.json"))
    if subfolders:
        hint = f"Found checkpoints in: {', '.join(subfolders)}. Pass one with --subfolder."
    names = (*files, *source.not_downloaded)
    _refuse_incomplete(f"{folder} has no config.json", hint, names)


def _refuse_incomplete(message: str, hint: str, names: Iterable[str]) -> NoReturn:
    foreign = filenames.find_foreign(names)
    if foreign is None:
        raise CheckpointError(f"{message}.", hint)
    name, row = foreign
    raise CheckpointError(f"{message}, only {name}: {row.kind}.", row.hint)


def load_modules(path: Path) -> list[dict[str, Any]]:
    """Read sentence-transformers' modules.json.

    Raises:
        CheckpointError: The file cannot be read, or is not a list of modules.
    """
    modules = parse_json(read_text(path), str(path))
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path} is not a list of modules.", "Download the file again.")
    return modules


# Weights


def open_weights(
    source: Source, path: Path, model: PurePosixPath, config: Mapping[str, Any] | None
) -> Weights:
    """Open a weights file, or the shards in an index, and read their headers.

    Files of PyTorch have the names of the safetensors files that they become, and tensors the names
    that transformers loads; then shards get a new index.

    Args:
        source: The checkpoint that they belong to.
        path: The file or the index.
        model: The model's folder, relative to the checkpoint's.
        config: The model's config; None if there is none, so that a single file may be a nanoGPT
            checkpoint, which contains its config.

    Raises:
        CheckpointError: The index or a file is malformed or missing, or they contradict.
    """
    index = None
    names = [path.name]
    if fnmatchcase(path.name, "*.index*.json"):
        index = load_object(path)
        names = _shard_names(path, index)
    files = dict[str, TensorFile]()
    own_config = None
    for name in names:
        stored = path.parent / name
        if name in source.remote:
            file: TensorFile = source.remote[name]
        elif index is not None and not has_file(source, stored):
            message = f"{path} lists {name}, which is missing."
            raise CheckpointError(message, "Download or copy that shard too.")
        else:
            is_only_file = config is None and index is None
            file, own_config = _open_file(stored, is_only_file=is_only_file)
        # The names that transformers and PEFT read.
        output_name = name
        if index is None or not name.endswith(SAFETENSORS):
            stem = stored.stem.removeprefix("pytorch_")
            output_name = PurePosixPath(name).with_name(f"{stem}{SAFETENSORS}").as_posix()
            if index is None and not re.fullmatch(r"model|model\.[^.]+|adapter_model", stem):
                output_name = SINGLE_FILE
        if output_name in files:
            message = f"{path} lists a shard in two formats."
            raise CheckpointError(message, "Save the checkpoint again.")
        files[output_name] = file
    if index is not None:
        _check_shards(path, index, files)

    tensors = [name for file in files.values() for name in file.entries]
    joined = "\n".join(tensors)  # one search in a text is faster than one in each name
    if COMPILED in joined or joined.startswith(MODULE):
        plain = plain_names(tensors, str(path.parent))
        if any(name != stored_name for stored_name, name in plain.items()):
            files = {name: file.with_names(plain) for name, file in files.items()}
    is_renamed = any(
        file.path != path.parent / name or any(old != new for old, new in file.names.items())
        for name, file in files.items()
    )
    index_file = ""
    if index is not None:
        if is_renamed:
            index = _new_index(index, files)
        index_name = path.name.replace("pytorch_model.bin", SINGLE_FILE)
        index_file = (model / index_name).as_posix()
    return Weights(
        files={(model / name).as_posix(): file for name, file in files.items()},
        index=index,
        index_file=index_file,
        is_index_new=is_renamed and index is not None,
        config=own_config,
    )


def _open_file(path: Path, *, is_only_file: bool) -> tuple[TensorFile, dict[str, Any] | None]:
    """Return a weights file, and the config that a nanoGPT checkpoint contains.

    Args:
        path: The file.
        is_only_file: Whether no config and no index belongs to it, so that it may be nanoGPT's.

    Raises:
        CheckpointError: The file is malformed, contains no model, or a second config.
    """
    with open_source(path) as opened, reading(path):
        start = opened.read(8)
    if start == b"version ":
        message = f"{path} is a Git LFS pointer, not the file itself."
        raise CheckpointError(message, "Run `git lfs pull` in its folder.")
    if path.suffix == SAFETENSORS:
        return open_safetensors(path), None
    from ctxextend.checkpoint.nanogpt import from_nanogpt, is_nanogpt
    from ctxextend.checkpoint.pytorch_file import as_tensor_file, find_tensors, unpickle

    content, mapped = unpickle(path)
    if not is_nanogpt(content):
        tensors, names = find_tensors(content, path)
        return as_tensor_file(path, tensors, names, mapped), None
    if not is_only_file:
        contains = "which contains its config and all tensors"
        message = f"{path} is a nanoGPT checkpoint, {contains}: no config or index belongs to it."
        raise CheckpointError(message, "Move it to a separate folder.")
    config, tensors = from_nanogpt(content, path)
    return as_tensor_file(path, tensors, {}, mapped), config


def _shard_names(path: Path, index: Mapping[str, Any]) -> list[str]:
    """Return the shards that an index lists.

    Raises:
        CheckpointError: It lists none, or a file that may be outside the folder.
    """
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        message = f"{path} has no weight_map."
        raise CheckpointError(message, "Download or save the checkpoint again.")
    names = set[str]()
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not stays_inside(name):
            message = f"{path} maps {tensor!r} to {name!r}, which is not a file inside the folder."
            hint = "Do not use this checkpoint unless you trust its source."
            raise CheckpointError(message, hint)
        names.add(PurePosixPath(name).as_posix())
    return sorted(names)


def _check_shards(path: Path, index: Mapping[str, Any], files: Mapping[str, TensorFile]) -> None:
    """Check that no tensor is in two shards, and that shards have those that the index lists.

    PyTorch shards may contain each other's, since they get other names and a new index.
    """
    entries = set[str]()
    for file in files.values():
        twice = entries & file.entries.keys()
        if twice:
            message = f"{min(twice)!r} is in both {file.path.name} and another shard."
            raise CheckpointError(message, "Save the checkpoint again.")
        entries |= file.entries.keys()
    names_in = {name: file.names.keys() for name, file in files.items()}
    names_in_any = set[str]().union(*names_in.values())
    for tensor, name in index["weight_map"].items():
        if tensor not in names_in.get(PurePosixPath(name).as_posix(), names_in_any):
            message = f"{path} maps {tensor!r} to {name}, which does not contain it."
            raise CheckpointError(message, "Download the index again.")


def _new_index(index: Mapping[str, Any], files: Mapping[str, TensorFile]) -> dict[str, Any]:
    metadata = index.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    weight_map = dict[str, str]()
    for name, file in files.items():
        weight_map |= dict.fromkeys(file.entries, name)
    total_size = sum(file.tensor_bytes for file in files.values())
    return {
        "metadata": metadata | {"total_size": total_size},
        "weight_map": dict(sorted(weight_map.items())),
    }
