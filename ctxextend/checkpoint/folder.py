"""A model folder: its config, its weights, and its other files, which are copied or skipped."""

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn

from ctxextend.checkpoint import features, filenames
from ctxextend.checkpoint.copy import Fingerprint, file_fingerprint, reading
from ctxextend.checkpoint.features import Refusal
from ctxextend.checkpoint.json_edit import Edit, load_object, parse_json, read_text
from ctxextend.checkpoint.safetensors_file import TensorFile
from ctxextend.checkpoint.source import (
    CACHED_MODEL,
    FOLDER,
    ConfigCheck,
    Source,
    cached_id,
    has_file,
    look_at,
)
from ctxextend.checkpoint.weights import Weights, open_weights
from ctxextend.errors import CheckpointError
from ctxextend.notes import Code, Level, Note

if TYPE_CHECKING:
    from ctxextend.checkpoint.writing import Layout

CONFIG = "config.json"
DTYPE_KEYS = ("dtype", "torch_dtype")  # of transformers 5, and of older versions
ADAPTER_CONFIG = "adapter_config.json"
MODULES = "modules.json"
ADAPTER_PREFIX = "base_model.model."  # PEFT's prefix of the base model's module names

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

# Keys that every params.json of a Mistral model has; many programs write a file of that name.
MISTRAL_KEYS = {"dim", "n_layers", "hidden_dim"}


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
    # Copied files in Mistral's own format. vLLM 0.33 reads them before config.json and other
    # weights: `get_config` of https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/
    # transformers_utils/config.py, and `_prepare_weights` of model_executor/model_loader/
    # default_loader.py.
    mistral_files: tuple[str, ...] = ()
    params: Mapping[str, Any] | None = None  # the content of its params.json, if it has one
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
        # Sentence encoders can have such a config too.
        is_generating = self.config.get("is_encoder_decoder") or self.config.get("is_decoder")
        values = {
            "root": root,
            "config_file": config_file,
            "has_config": config_file in (*self.copied, *self.generated),
            "model_class": model_class,
            "no_lm": no_lm,
            "generates": MODULES not in self.copied and bool(is_generating or not no_lm),
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

    def without_mistral_files(self) -> "Checkpoint":
        """Return the checkpoint without the files in Mistral's own format, with old weights."""
        skipped = dict.fromkeys(self.mistral_files, "Mistral's own format, not rewritten")
        return replace(
            self,
            copied=tuple(name for name in self.copied if name not in skipped),
            omitted={**self.omitted, **skipped},
            mistral_files=(),
            params=None,
        )

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


# What to say about a checkpoint


def no_lm_head(model_class: str | None) -> str:
    """Say that a transformers class has no LM head, or that none is stated; empty if it has one."""
    if model_class is None:
        return f"{CONFIG} states no model class, and the weights have no LM head"
    if model_class.endswith(LM_CLASSES):
        return ""
    return f"{model_class} has no LM head"


# Opening a folder


def open_checkpoint(
    source: Source, variant: str | None = None, check: ConfigCheck = lambda config: None
) -> Checkpoint:
    """Read a folder's config and its weights' headers, and list the other files to copy.

    Args:
        source: The folder and its origin.
        variant: The variant of the weights, such as ``fp16``; None for plain weights.
        check: Is called with the config, and may raise.

    Raises:
        CheckpointError: A file is missing, malformed or unreadable.
    """
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
        mistral_files = [
            name for name in copied if filenames.matches(name, (filenames.CONSOLIDATED,))
        ]
        params = None
        if filenames.PARAMS_FILE in copied:
            with suppress(CheckpointError):
                content = load_object(root / filenames.PARAMS_FILE)
                if content.keys() >= MISTRAL_KEYS:
                    mistral_files.append(filenames.PARAMS_FILE)
                    params = content
        notes = list(source.notes)
        if weights.wrappers:
            text = (
                f"Tensor names are read without {', '.join(weights.wrappers)}, which a wrapper "
                "added: an output has plain names."
            )
            notes.append(Note(Code.SOURCE, Level.NOTE, text))
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
                recipe = read_text(root / filenames.RECIPE_FILE)
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
            mistral_files=tuple(mistral_files),
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
    single = filenames.with_variant(filenames.SINGLE_FILE, variant)
    pytorch = filenames.with_variant("pytorch_model.bin", variant)
    message = f"{folder} has no {single}, {pytorch} or shard index"
    variants = dict.fromkeys(filter(None, map(filenames.variant_of, names)))
    readable = list[str]()
    for name in filenames.names_below(files, model):
        is_weights = name.endswith(filenames.READABLE) and "/" not in name
        if is_weights and filenames.find_foreign((name,)) is None:
            readable.append(name)
    if readable:
        message += f", only {', '.join(readable)}"
    if variants:
        flags = " or ".join(f"--variant {name}" for name in variants)
        raise CheckpointError(f"{message}.", f"Choose one: {flags}.")
    if variant is not None:
        raise CheckpointError(f"{message}.", "Remove --variant, or download the missing file.")
    if readable:
        hint = f"Pass the file itself, {folder / readable[0]}, or download the missing one."
        raise CheckpointError(f"{message}.", hint)
    hint = (
        "Download the missing file. If --edit-only wrote the folder, run the command that it "
        "printed."
    )
    _refuse_incomplete(message, hint, names)


def _refuse_without_config(source: Source, files: Iterable[str]) -> NoReturn:
    folder = source.folder
    if folder.name.startswith(CACHED_MODEL):
        message = f"{folder} is a folder of the Hub cache, and its checkpoints are below."
        raise CheckpointError(message, f"Pass the Hub id: {cached_id(folder.name)}")
    message = f"{folder} has no config.json"
    subfolders = sorted(shlex.quote(path.parent.name) for path in folder.glob("*/config.json"))
    if subfolders:
        hint = f"Found checkpoints in: {', '.join(subfolders)}. Pass one with --subfolder."
        raise CheckpointError(f"{message}.", hint)
    hint = "Pass the folder of a transformers checkpoint, or a weights file with --model-type."
    _refuse_incomplete(message, hint, (*files, *source.not_downloaded))


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
