"""Checkpoints ready to be measured: a model, its tokenizer, and how many tokens it reads at once."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError, RecipeError, UnsupportedModelError
from ctxextend.evaluation.readerfiles import ReaderFiles, open_files
from ctxextend.models.load import Loaded, load
from ctxextend.plan.find_tables import open_model
from ctxextend.recipe import CheckpointRef
from ctxextend.writtenrecipe import written_recipe

__all__ = [
    "CAUSAL",
    "ENCODER",
    "MASKED",
    "Reader",
    "check_known",
    "encode",
    "load_reader",
    "open_reader",
    "prepare_attention",
    "reading_alone",
    "separator",
    "share_equal_tensors",
]

# What a model was made for: the next token, a masked one, or vectors of texts.
CAUSAL, MASKED, ENCODER = "causal", "masked", "encoder"

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

# The file by which sentence-transformers knows a folder of its own.
SENTENCE_MODULES = "modules.json"


@dataclass(frozen=True)
class Reader:
    """A checkpoint that was loaded to read texts.

    Attributes:
        name: What the user called it.
        root: The checkpoint's folder.
        family: Its model type.
        kind: `CAUSAL`, `MASKED` or `ENCODER`.
        model: The model of transformers, on its device, not in training.
        tokenizer: The tokenizer of transformers.
        max_len: Tokens that it reads at once, those of `prefix` and `suffix` included.
        prefix: Special tokens that its tokenizer puts in front of every text.
        suffix: Those that it puts behind.
        made_of: What the recipe beside it says that it was made of; None where that says nothing.
        tables_before: The SHA-256 of each table of what it was made of, by the recipe.
        notes: What should be known of it.
        offset: Rows of its table in front of position 0.
    """

    name: str
    root: Path
    family: str
    kind: str
    model: Any
    tokenizer: Any
    max_len: int
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    made_of: CheckpointRef | None = None
    tables_before: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    offset: int = 0

    @property
    def special(self) -> int:
        """Tokens that are no text, of every text that it reads."""
        return len(self.prefix) + len(self.suffix)

    def framed(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of a text, shape (k,), between its special tokens, shape (k + special,)."""
        return np.concatenate([np.array(self.prefix, np.int64), ids, np.array(self.suffix, np.int64)])


def open_reader(ref: CheckpointRef, precision: str = "auto", hashes: Mapping[str, str] | None = None) -> Reader:
    """Load a checkpoint with its tokenizer.

    Args:
        ref: The checkpoint.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto``: fp32 on a CPU, bf16 on an accelerator that has it.
        hashes: The SHA-256 that its tables should have, by their names; None is whatever they have.

    Raises:
        CtxextendError: As `open_model`, `open_files` and `load_reader`.
    """
    return load_reader(open_files(open_model(ref, typed=("evaluate",)), hashes), precision)


def load_reader(files: ReaderFiles, precision: str = "auto") -> Reader:
    """Load the weights of a checkpoint.

    Args:
        files: From `open_files`.
        precision: As in `open_reader`.

    Raises:
        CheckpointError: transformers cannot load it as it is, or its tokenizer has no mask token.
        UnsupportedModelError: It is neither a language model nor an encoder of texts.
    """
    ref, checkpoint, family = files.ref, files.checkpoint, files.opened.architecture.family.model_type
    device, dtype = _device_and_dtype(precision)
    kind, loaded = _load(checkpoint, family, dtype)
    _check_loaded(ref, loaded)
    if kind == MASKED and files.tokenizer.mask_token_id is None:
        raise CheckpointError(f"The tokenizer of {ref.source} has no mask token.", "Use the model's own tokenizer.")
    names, frame = (ref.source, checkpoint.root, family, kind), (files.prefix, files.suffix)
    model = loaded.model.to(device)
    notes = (*checkpoint.source.notes, *_headless(checkpoint, kind))
    return Reader(*names, model, files.tokenizer, files.max_len, *frame, *_made_of(checkpoint), notes, files.offset)


def _headless(checkpoint: Checkpoint, kind: str) -> Iterator[str]:
    """Say that the class that a config names has a head, and the file has none."""
    known = checkpoint.model_class
    if kind == ENCODER and known is not None and known.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel")):
        yield f"{checkpoint.root} holds no head of a {known}, so it is measured as an encoder."


def _made_of(checkpoint: Checkpoint) -> tuple[CheckpointRef | None, Mapping[str, str]]:
    """Return what the recipe beside a checkpoint says that it was made of, and the hashes of that one's tables."""
    try:
        written = written_recipe(checkpoint)
    except RecipeError:  # a file of that name that is none of ours says nothing
        return None, {}
    if written is None:
        return None, {}
    first = written.chain[-1]
    return first.recipe.checkpoint, first.hashes


def _device_and_dtype(precision: str) -> tuple[Any, str]:
    import torch

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if precision != "auto":
        return device or torch.device("cpu"), DTYPES[precision]
    if device is None:
        return torch.device("cpu"), DTYPES["fp32"]
    has_bfloat = device.type != "cuda" or torch.cuda.is_bf16_supported()
    return device, DTYPES["bf16" if has_bfloat else "fp32"]


def _load(checkpoint: Checkpoint, model_type: str, dtype: str) -> tuple[str, Loaded]:
    """Load a model by a class that has a language-model head, or as an encoder where its file holds no such head."""
    folder, variant = checkpoint.root / checkpoint.model, checkpoint.stored.variant
    if (checkpoint.root / SENTENCE_MODULES).is_file():
        return ENCODER, load(folder, None, variant, dtype)
    for kind, model_class in _head_classes(model_type, checkpoint.model_class):
        loaded = load(folder, model_class, variant, dtype)
        if not loaded.missing:  # even a class that its config names may need a head that the file never had
            return kind, loaded
    return ENCODER, load(folder, None, variant, dtype)


def _check_loaded(ref: CheckpointRef, loaded: Loaded) -> None:
    """Refuse what was loaded but would measure something else than the checkpoint.

    Raises:
        CheckpointError: Tensors are missing, or have other shapes than the config says: random ones stand in their
            places.
    """
    if loaded.mismatched:
        raise CheckpointError(
            f"{', '.join(loaded.mismatched[:3])} of {ref.source} is not as large as its config says.",
            "Put the config.json that belongs to the weights beside them.",
        )
    if missing := [name for name in loaded.missing if "pooler." not in name]:  # vectors of texts do without a pooler
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise CheckpointError(
            f"{ref.source} lacks {len(missing)} tensors, for which transformers would draw random ones: {some}.",
            "Fetch the checkpoint again.",
        )


def _head_classes(model_type: str, known: str | None) -> list[tuple[str, str]]:
    """Return the classes with a language-model head to try, that which the config names alone where it has one.

    Raises:
        UnsupportedModelError: The class reads one text and writes another.
    """
    from transformers.models.auto import modeling_auto as auto

    # A model of such a type may still be its decoder alone.
    is_pair = model_type in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    if is_pair and known not in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise UnsupportedModelError(
            f"{known or model_type} reads one text and writes another; "
            "decoders, masked language models and encoders are measured.",
            "Use verify --deep to see that it runs.",
        )
    heads = {
        MASKED: auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        CAUSAL: auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    named = [(kind, known) for kind, classes in heads.items() if known is not None and known in classes.values()]
    return named[:1] or [(kind, classes[model_type]) for kind, classes in heads.items() if model_type in classes]


def separator(reader: Reader | ReaderFiles) -> int | None:
    """Return the token that parts documents that are read one behind the other; None where there is none."""
    known = (reader.tokenizer.eos_token_id, reader.tokenizer.sep_token_id)
    return next((token for token in known if token is not None), None)


def encode(reader: Reader | ReaderFiles, text: str) -> NDArray[np.int64]:
    """Return the ids of a text without special tokens, however long it is, shape (tokens,)."""
    ids = reader.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    return np.array(ids, np.int64)


@contextmanager
def reading_alone(reader: Reader, what: str) -> Iterator[None]:
    """Refuse a model that fails here, where it is given a text and nothing else for the first time.

    Args:
        reader: The model.
        what: What it should give of the text.

    Raises:
        UnsupportedModelError: It needs something beside a text.
    """
    try:
        yield
    except Exception as error:  # each class has its own way to miss what it was not given
        said = " ".join(str(error).split())[:300]
        raise UnsupportedModelError(
            f"{reader.name} gives no {what} of a text alone: {type(error).__name__}: {said}",
            "Name a checkpoint of a model of texts.",
        ) from error


def check_known(reader: Reader, ids: NDArray[np.int64]) -> None:
    """Refuse ids that a model has no vector for.

    Raises:
        CheckpointError: The tokenizer gives tokens that the model does not know.
        UnsupportedModelError: It is no model of texts alone.
    """
    try:
        words = getattr(reader.model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError as error:
        raise UnsupportedModelError(
            f"{reader.name}, a {type(reader.model).__name__}, is no model of texts alone.",
            "Name a checkpoint of a model of texts, such as its text part.",
        ) from error
    if words is not None and ids.max(initial=0) >= words:
        raise CheckpointError(
            f"The tokenizer of {reader.name} gives the token {ids.max()}, and the model knows {words:,} tokens.",
            "Put the tokenizer's files into the folder that belong to the model.",
        )


def prepare_attention(reader: Reader) -> None:
    """Give a model the attention that its config names, before each text that it reads.

    BigBird leaves its sparse attention for good when it reads a text that is too short for it.
    """
    change = getattr(reader.model.base_model, "set_attention_type", None)
    if change is not None:
        change(reader.model.config.attention_type)


def share_equal_tensors(reader: Reader, other: Reader) -> None:
    """Let one model use the other's tensors wherever both are equal, so that two take little more memory than one."""
    import torch

    theirs = dict(other.model.named_parameters())
    for name, parameter in reader.model.named_parameters():
        twin = theirs.get(name)
        if twin is not None and twin.shape == parameter.shape and torch.equal(twin, parameter):
            parameter.data = twin.data
