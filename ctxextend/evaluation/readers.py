"""Checkpoints ready to be measured: a model, its tokenizer, and how many tokens it reads at once."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.weights import read_floats
from ctxextend.errors import CheckpointError, RecipeError, UnsupportedModelError
from ctxextend.plan import table_hash
from ctxextend.recipe import Subject
from ctxextend.recognition import open_subject, recognize
from ctxextend.running import Loaded, check_loadable, load
from ctxextend.tableplan import check_rows, describe_table, find_tables
from ctxextend.writtenrecipe import written_recipe

__all__ = [
    "CAUSAL",
    "ENCODER",
    "MASKED",
    "Reader",
    "check_known",
    "encode",
    "open_reader",
    "prepare_attention",
    "reading_alone",
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
    made_of: Subject | None = None
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


def open_reader(subject: Subject, precision: str = "auto", hashes: Mapping[str, str] | None = None) -> Reader:
    """Load what a command names, with its tokenizer.

    Args:
        subject: The checkpoint.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto``: fp32 on a CPU, bf16 on an accelerator that has it.
        hashes: The SHA-256 that its tables should have, by their names; None is whatever they have.

    Raises:
        CtxextendError: As `open_subject` and `recognize`.
        CheckpointError: A table is another, transformers cannot load it as it is, or it has no tokenizer.
        UnsupportedModelError: It is neither a language model nor an encoder of texts.
    """
    checkpoint = open_subject(subject)
    _check_tables(checkpoint, subject, hashes or {})
    check_loadable(checkpoint, "Resize it first: what resize writes can be loaded.")
    architecture = recognize(checkpoint, subject)
    place, name = find_tables(architecture, frozenset(checkpoint.names), str(checkpoint.root))[0]
    rows = describe_table(checkpoint, name)[0][0]
    check_rows(place, rows, name, has_config=True)
    device, dtype = _device_and_dtype(precision)
    kind, loaded = _load(checkpoint, architecture.family.model_type, dtype)
    _check_loaded(subject, loaded)
    tokenizer = _tokenizer(checkpoint)
    if kind == MASKED and tokenizer.mask_token_id is None:
        raise CheckpointError(f"The tokenizer of {subject.source} has no mask token.", "Use the model's own tokenizer.")
    prefix, suffix = _special_tokens(tokenizer)
    model = loaded.model.to(device)
    names = subject.source, checkpoint.root, architecture.family.model_type, kind
    reads, made_of = place.positions(rows), _made_of(checkpoint)
    notes = (*checkpoint.source.notes, *_headless(checkpoint, kind))
    return Reader(*names, model, tokenizer, reads, prefix, suffix, *made_of, notes, place.offset)


def _headless(checkpoint: Checkpoint, kind: str) -> Iterator[str]:
    """Say that the class that a config names has a head, and the file has none."""
    known = checkpoint.model_class
    if kind == ENCODER and known is not None and known.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel")):
        yield f"{checkpoint.root} holds no head of a {known}, so it is measured as an encoder."


def _made_of(checkpoint: Checkpoint) -> tuple[Subject | None, Mapping[str, str]]:
    """Return what the recipe beside a checkpoint says that it was made of, and the hashes of that one's tables."""
    try:
        written = written_recipe(checkpoint)
    except RecipeError:  # a file of that name that is none of ours says nothing
        return None, {}
    return (replace(written.recipe.subject, command="evaluate", flags=()), written.hashes) if written else (None, {})


def _check_tables(checkpoint: Checkpoint, subject: Subject, hashes: Mapping[str, str]) -> None:
    """Refuse a checkpoint that took the place of another since that was resized."""
    for name, known in hashes.items():
        if name not in checkpoint.names or table_hash(read_floats(checkpoint.holder(name), name)) != known:
            raise CheckpointError(f"{subject.source} is no longer what it was then: its table {name} is another.")


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


def _check_loaded(subject: Subject, loaded: Loaded) -> None:
    """Refuse what was loaded but would measure something else than the checkpoint.

    Raises:
        CheckpointError: Tensors are missing, or have other shapes than the config says: random ones stand in their
            places.
    """
    if loaded.mismatched:
        raise CheckpointError(
            f"{', '.join(loaded.mismatched[:3])} of {subject.source} is not as large as its config says.",
            "Put the config.json that belongs to the weights beside them.",
        )
    if missing := [name for name in loaded.missing if "pooler." not in name]:  # vectors of texts do without a pooler
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise CheckpointError(
            f"{subject.source} lacks {len(missing)} tensors, for which transformers would draw random ones: {some}.",
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


def _tokenizer(checkpoint: Checkpoint) -> Any:
    from transformers import AutoTokenizer

    folder = checkpoint.root / checkpoint.model
    hint = "Put the tokenizer's files into the folder: without them no text can be read."
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever a tokenizer of transformers raises on a folder that it cannot load
        said = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"transformers cannot load a tokenizer from {folder}: {type(error).__name__}: {said}", hint
        ) from error
    # Where there are no files, transformers makes one that knows no word.
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise CheckpointError(f"There is no tokenizer in {folder}.", hint)
    return tokenizer


def _special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that a tokenizer puts in front of a text and behind it."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed = tokenizer("a")["input_ids"]
    start = next((i for i in range(len(framed)) if framed[i : i + len(bare)] == bare), len(framed))
    return tuple(framed[:start]), tuple(framed[start + len(bare) :])


def encode(reader: Reader, text: str) -> NDArray[np.int64]:
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
    """
    words = getattr(reader.model.get_input_embeddings(), "num_embeddings", None)
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
