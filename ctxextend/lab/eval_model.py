"""A checkpoint loaded for evaluation or training: its model, its tokenizer, its context length."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ctxextend.checkpoint.checkpoint import MODULES, Checkpoint
from ctxextend.errors import CheckpointError, UnsupportedModelError, one_line
from ctxextend.held_out import Ids
from ctxextend.lab.text_tokenizer import TextTokenizer, check_tokenizer_name
from ctxextend.models.devices import open_device
from ctxextend.models.load import LoadingInfo, check_loadable, load
from ctxextend.opening.opened_model import OpenedModel, open_model
from ctxextend.positions.positions import Positions
from ctxextend.provenance import check_source, read_provenance, trainings
from ctxextend.settings import CheckpointRef
from ctxextend.tables.layouts import find_formula

if TYPE_CHECKING:
    import torch

# Kinds of models: causal language model, masked language model, text encoder without an LM head.
CAUSAL = "causal"
MASKED = "masked"
ENCODER = "encoder"
DTYPE_OF_PRECISION = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
PASS_BASE = "Pass the base checkpoint with --base (evaluate.base in a recipe)."
COMPARED_TOKENS = 512  # tokens of the text by which two tokenizers are compared
TOKENS_PER_BATCH = 4096  # unless a batch size is given
UNKNOWN_SCHEME = "-"  # of positions that no list has
# What a rotary module of transformers remembers: ends of names, after that of a layer type if any.
LONGEST_READ = "max_seq_len_cached"
FIRST_FREQUENCIES = "original_inv_freq"
FIRST_LENGTH = "original_max_seq_len"
CLASSES_WITH_HEAD = ("ForMaskedLM", "ForCausalLM", "LMHeadModel")  # ends of their names


@dataclass(frozen=True)
class ModelFiles:
    """A checkpoint that transformers can load, with its tokenizer and its context length."""

    ref: CheckpointRef  # as the user named it
    checkpoint: Checkpoint
    model_type: str
    tokenizer_name: str | Path  # see `TextTokenizer.open`
    max_len: int  # context length in tokens, special tokens included
    # What its recipe records about the text of each training run.
    trainings: Sequence[Mapping[str, Any]]

    kind: ClassVar[str | None] = None  # the only one to evaluate it as; None: its weights decide

    def __post_init__(self) -> None:
        check_tokenizer_name(self.tokenizer_name)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer, which is opened on first use, since that imports transformers.

        Raises:
            CheckpointError: The checkpoint has none.
        """
        return TextTokenizer.open(self.tokenizer_name)

    @property
    def name(self) -> str:
        """The reference that the user passed."""
        return self.ref.source

    @property
    def stated_kind(self) -> str | None:
        """The kind that its files state; None if they do not, or if it is only known when loaded.

        The weights may lack the head of the stated class.
        """
        if (self.checkpoint.root / MODULES).is_file():
            return ENCODER
        stated = self.checkpoint.model_class
        if stated is None or not stated.endswith(CLASSES_WITH_HEAD):
            return self.kind
        return MASKED if stated.endswith("ForMaskedLM") else CAUSAL

    @property
    def unusable_rows(self) -> int:
        """The number of rows of its position table that are not usable positions."""
        return 0

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on how it is read."""
        return tuple(note.text for note in self.checkpoint.source.notes)

    def find_scheme(self) -> str:
        """Return its position scheme, as `CheckpointFacts` states it."""
        return UNKNOWN_SCHEME


@dataclass(frozen=True)
class ResizableFiles(ModelFiles):
    """A checkpoint whose positions can be resized."""

    opened: OpenedModel

    @property
    def tables(self) -> tuple[Positions, ...]:
        """Its position tables, in registry order."""
        return self.opened.tables

    @property
    def table_name(self) -> str:
        """The tensor name of the first table."""
        return self.tables[0].name

    @property
    def rows(self) -> int:
        """The rows of the first table, with those that are not usable positions.

        They follow from the context length; `open_files` has checked that stored tables have them.
        Positions without rows count as a table of this context length.
        """
        location = self.tables[0]
        return self.max_len + location.other_rows

    @property
    def unusable_rows(self) -> int:
        """The number of rows of the first table that are not usable positions.

        These are the reserved rows, before position 0, and, of few models, rows after the last
        position.
        """
        return self.rows - self.max_len

    def find_scheme(self) -> str:
        """Return the position scheme of the first table. The first of these that applies counts:

        1. "rotary" if the model rotates states by a table of sinusoids.
        2. Without stored rows, the scheme of the model type.
        3. Whatever the config states, that of the stored rows: "none" if all are equal,
           "sinusoidal" if they equal the formula, else "learned".

        Raises:
            CheckpointError: The table cannot be read.
        """
        location = self.tables[0]
        if location.rotates:
            return "rotary"
        stored_table = self.opened.read_table()
        if stored_table is None:
            return location.scheme
        rows = stored_table[location.reserved_rows :]
        if (rows == rows[0]).all():
            return "none"
        return "learned" if find_formula(rows, location.initial_layout) is None else "sinusoidal"


@dataclass(frozen=True)
class EvalModel:
    """A checkpoint loaded for evaluation or training."""

    name: str  # the reference that the user passed
    root: Path  # the checkpoint's folder
    model_type: str
    kind: str  # `CAUSAL`, `MASKED` or `ENCODER`
    model: Any  # from transformers, on its device, in evaluation mode
    tokenizer: TextTokenizer
    max_len: int  # context length in tokens, special tokens included
    notes: tuple[str, ...] = ()
    unusable_rows: int = 0  # see `ModelFiles`
    trainings: Sequence[Mapping[str, Any]] = ()  # see `ModelFiles`

    @property
    def max_text(self) -> int:
        """The context length in tokens, without special tokens."""
        return self.max_len - self.tokenizer.num_special

    @property
    def precision(self) -> str:
        """The dtype of the forward passes, as torch names it."""
        return str(self.model.dtype).removeprefix("torch.")


ModelOrFiles = EvalModel | ModelFiles


def open_files(opened: OpenedModel, fingerprint: str | None = None) -> ResizableFiles:
    """Check that a checkpoint can be loaded and has the weights of a fingerprint.

    Raises:
        CheckpointError: The weights are others, transformers cannot load them, or the
            first table does not have the rows that the config states.
    """
    checkpoint = opened.checkpoint
    table = opened.tables[0]
    check_source(checkpoint, opened.ref, fingerprint)
    check_loadable(checkpoint)
    max_len = table.length()
    table.check_rows()
    provenance = read_provenance(checkpoint)
    own: str | Path = checkpoint.root / checkpoint.model
    if provenance is not None and provenance.steps[-1].source.tokenizer:
        own = provenance.steps[-1].source.tokenizer
    tokenizer = opened.ref.tokenizer or own
    runs = list[Mapping[str, Any]]()
    if provenance is not None:
        runs = trainings(provenance)
    # Another tokenizer cuts the text differently, so recorded held-out windows do not apply.
    if os.path.realpath(tokenizer) != os.path.realpath(own):
        runs = [{name: value for name, value in run.items() if name != "held_out"} for run in runs]
    return ResizableFiles(
        ref=opened.ref,
        checkpoint=checkpoint,
        model_type=opened.architecture.family.model_type,
        tokenizer_name=tokenizer,
        max_len=max_len,
        trainings=runs,
        opened=opened,
    )


def open_eval_model(
    ref: CheckpointRef,
    precision: str = "auto",
    fingerprint: str | None = None,
    device: str | None = None,
) -> EvalModel:
    """Load a checkpoint with its tokenizer.

    Raises:
        CheckpointError: As `open_files` and `load_eval_model`.
        UnsupportedModelError: It is an encoder-decoder model.
    """
    return load_eval_model(open_files(open_model(ref), fingerprint), precision, device)


def auto_precision(device: str) -> str:
    """Return fp32 for a CPU or a CUDA device without bf16, and bf16 for any other device.

    Other accelerators than CUDA devices are not asked whether they support it.
    """
    import torch

    if device == "cpu":
        return "fp32"
    if device == "cuda" and not torch.cuda.is_bf16_supported():
        return "fp32"
    return "bf16"


def load_eval_model(
    files: ModelFiles, precision: str = "auto", device: str | None = None
) -> EvalModel:
    """Load the weights of a checkpoint; for the precision "auto", see `auto_precision`.

    Raises:
        CheckpointError: Tensors are missing or have other shapes, or a masked language model has
            no mask token.
        UnsupportedModelError: It is an encoder-decoder model.
    """
    checkpoint = files.checkpoint
    torch_device = open_device(device)
    if precision == "auto":
        precision = auto_precision(torch_device.type)
    kind, model, info = _load(files, DTYPE_OF_PRECISION[precision])
    # Poolers may be missing: no measure uses them.
    missing = [tensor for tensor in info.missing if "pooler." not in tensor]
    wrong = [*info.mismatched, *missing]
    if wrong:
        names = ", ".join(wrong[:3])
        if len(wrong) > 3:
            names += ", ..."
        message = (
            f"Tensors of {files.name} are missing or have the wrong shape ({len(wrong)}): {names}."
        )
        hint = (
            "Download the checkpoint again, or use the config.json that belongs to these weights."
        )
        raise CheckpointError(message, hint)
    if kind == MASKED and files.tokenizer.tokenizer.mask_token_id is None:
        message = f"The tokenizer of {files.name} has no mask token."
        raise CheckpointError(message, "Use the model's own tokenizer.")
    if model.device.type != torch_device.type:
        model = model.to(torch_device)
    notes = files.notes
    stated = checkpoint.model_class
    if kind == ENCODER and stated is not None and stated.endswith(CLASSES_WITH_HEAD):
        note = f"{checkpoint.root} has no LM head of {stated}, so it is evaluated as an encoder."
        notes = (*notes, note)
    return EvalModel(
        name=files.name,
        root=checkpoint.root,
        model_type=files.model_type,
        kind=kind,
        model=model,
        tokenizer=files.tokenizer,
        max_len=files.max_len,
        notes=notes,
        unusable_rows=files.unusable_rows,
        trainings=files.trainings,
    )


def _load(files: ModelFiles, dtype: str) -> tuple[str, Any, LoadingInfo]:
    """Load a model with its LM head, or as an encoder if its files have no such head.

    Each class with a head is tried, until one loads completely, or is of the only kind that can be
    evaluated. A sentence-transformers folder is an encoder.
    """
    from transformers.models.auto import modeling_auto as auto

    checkpoint = files.checkpoint
    stated = checkpoint.model_class
    if not (checkpoint.root / MODULES).is_file():
        # Of an encoder-decoder, there may be only the decoder, if its class is stated.
        is_decoder = stated in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        if files.model_type in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES and not is_decoder:
            message = (
                f"{stated or files.model_type} is an encoder-decoder model; only decoders, masked "
                "language models and encoders are supported here."
            )
            raise UnsupportedModelError(message, "Use verify --deep to test it.")
        for kind, model_class in _classes_with_head(stated, files.model_type):
            model, info = load(checkpoint, model_class, dtype)
            # The file may lack a head, even of the class in the config.
            if not info.missing or kind == files.kind:
                return kind, model, info
    model, info = load(checkpoint, None, dtype)
    return ENCODER, model, info


def _classes_with_head(stated: str | None, model_type: str) -> list[tuple[str, str]]:
    """Return the kinds and the classes of a model with an LM head.

    They are the stated class if it has a head, or else all classes of the model type: the one for
    masked language models first.
    """
    from transformers.models.auto import modeling_auto as auto

    names_of_kind = {
        MASKED: auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        CAUSAL: auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    for kind, names in names_of_kind.items():
        if stated is not None and stated in names.values():
            return [(kind, stated)]
    found = []
    for kind, names in names_of_kind.items():
        if model_type in names:
            found.append((kind, names[model_type]))
    return found


def rope_types(config: Any) -> set[str]:
    """Return the rope types that a config of transformers states, of all layer types."""
    settings = getattr(config, "rope_parameters", None)
    if not isinstance(settings, Mapping):
        return set()
    if "rope_type" in settings:
        return {str(settings["rope_type"])}
    by_layer = [one for one in settings.values() if isinstance(one, Mapping)]
    return {str(one["rope_type"]) for one in by_layer if "rope_type" in one}


def _reset_dynamic_rope(model: Any) -> None:
    """Set the frequencies of dynamic NTK scaling to those of a model that has read nothing.

    They grow with the longest text that a model has read, and stay so for shorter ones: see
    `dynamic_rope_update` in modeling_rope_utils.py of transformers.
    """
    for module in model.modules():
        for name in list(vars(module)):
            if name.endswith(LONGEST_READ):
                prefix = name.removesuffix(LONGEST_READ)
                frequencies = getattr(module, prefix + FIRST_FREQUENCIES, None)
                if frequencies is not None:
                    frequencies = frequencies.to(model.device)
                    module.register_buffer(f"{prefix}inv_freq", frequencies, persistent=False)
                    setattr(module, name, getattr(module, FIRST_LENGTH))


def prepare_inputs(
    model: Any, ids: "torch.Tensor", position_ids: "torch.Tensor | None" = None
) -> dict[str, Any]:
    """Undo what earlier texts have changed in a model; return the arguments of a pass.

    The pass has neither padding nor a cache.

    Args:
        model: From transformers.
        ids: Token ids, shape (b, w).
        position_ids: Position ids, shape (b, w); None: the model's default.
    """
    import torch

    # BigBird switches to full attention for good when a text is too short for block-sparse
    # attention.
    set_attention_type = getattr(model.base_model, "set_attention_type", None)
    if set_attention_type is not None:
        set_attention_type(model.config.attention_type)
    if "dynamic" in rope_types(model.config):
        _reset_dynamic_rope(model)
    # Without a mask of ones, some models look for padding in the ids, or for packed texts in the
    # position ids.
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(model.config, "use_cache", None) is not None:
        inputs["use_cache"] = False
    if position_ids is not None:
        inputs["position_ids"] = position_ids
    return inputs


def ignore(tokens: int) -> None:
    """Do nothing with the number of tokens that were read."""


def batches(lengths: Sequence[int], batch_size: int | None = None) -> Iterator[list[int]]:
    """Yield batches of indices of equally long texts, which need no padding.

    Args:
        lengths: Tokens of each text.
        batch_size: Texts per batch; None: as many as fit `TOKENS_PER_BATCH`.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for length, group in groupby(order, key=lengths.__getitem__):
        indices = list(group)
        size = batch_size or max(TOKENS_PER_BATCH // length, 1)
        for start in range(0, len(indices), size):
            yield indices[start : start + size]


@contextmanager
def errors_as_unsupported(model: EvalModel, output: str) -> Iterator[None]:
    """Convert any error of a block, which computes an output of a model from text only.

    Raises:
        UnsupportedModelError: The block failed: the model needs more than text.
    """
    try:
        yield
    except Exception as error:  # model classes fail in various ways when inputs are missing
        message = (
            f"{model.name} cannot compute {output} from text only: {type(error).__name__}: "
            f"{one_line(error)}"
        )
        hint = "Pass a text model, such as the text part of this one."
        raise UnsupportedModelError(message, hint) from error


def check_vocabulary(model: EvalModel, ids: Ids) -> None:
    """Check that ids are inside the model's vocabulary.

    Raises:
        CheckpointError: An id is beyond it.
        UnsupportedModelError: The model has no token embeddings.
    """
    with errors_as_unsupported(model, "embeddings"):
        vocab_size = getattr(model.model.get_input_embeddings(), "num_embeddings", None)
    if vocab_size is None or ids.max(initial=0) < vocab_size:
        return
    message = (
        f"{model.name} has a vocabulary of {vocab_size:,}, but its tokenizer returned token "
        f"{ids.max()}."
    )
    hint = "Pass the model's own tokenizer: --tokenizer NAME (for nanoGPT, its meta.pkl)."
    raise CheckpointError(message, hint)


def check_same_tokens(
    model: ModelOrFiles, base: ModelOrFiles, window: Ids, hint: str = PASS_BASE
) -> None:
    """Check that the tokenizers of two models cut the text of these ids, (tokens,), alike.

    Raises:
        CheckpointError: They do not.
    """
    tokenizer = model.tokenizer
    other = base.tokenizer
    text = tokenizer.tokenizer.decode(window[:COMPARED_TOKENS])
    same_special = (tokenizer.before, tokenizer.after) == (other.before, other.after)
    if not same_special or not np.array_equal(tokenizer.encode(text), other.encode(text)):
        message = (
            f"The tokenizers of {model.name} and {base.name} cut the text into different tokens."
        )
        raise CheckpointError(message, hint)
