"""A checkpoint loaded for evaluation or training: the model, its tokenizer and its context
length.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import MODULES, Checkpoint
from ctxextend.checkpoints.safetensors_file import read_floats
from ctxextend.checkpoints.source import BUNDLED
from ctxextend.errors import (
    CheckpointError,
    DataError,
    TrainingError,
    UnsupportedModelError,
    one_line,
)
from ctxextend.held_out import Ids
from ctxextend.inspection.stated_limits import TOKENIZER_FILES
from ctxextend.models.devices import open_device
from ctxextend.models.load import LoadedModel, check_loadable, load
from ctxextend.output.record import table_hash
from ctxextend.plan.find_tables import OpenedModel, check_rows, describe_table, open_model
from ctxextend.recipe import CheckpointRef, Train
from ctxextend.recipe_file import FINGERPRINT, read_provenance, trainings
from ctxextend.tables.sinusoids import find_formula, fit_layout

if TYPE_CHECKING:
    import torch

# Kinds of models: causal language model, masked language model, text encoder without an LM head.
CAUSAL, MASKED, ENCODER = "causal", "masked", "encoder"
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
PASS_BASE = "Pass the base checkpoint with --base (evaluate.base in a recipe)."
COMPARED_TOKENS = 512  # tokens of the text by which two tokenizers are compared
TOKENS_PER_BATCH = 4096  # unless a batch size is given
# Position ids that `position_base` tries: default, reversed, and with a jump.
DEFAULT, REVERSED, JUMPING = (0, 1, 2, 3), (3, 2, 1, 0), (0, 1, 5, 6)
SINUSOIDAL_SHARE = 0.9  # of the variance of rows that sinusoids explain, also after some training
# outputs count as equal if they differ by less than this share of the effect of reversed positions
TOLERANCE = 0.01


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer, and the special tokens that it adds to each text."""

    tokenizer: Any  # from transformers
    before: tuple[int, ...] = ()  # ids of the special tokens before a text
    after: tuple[int, ...] = ()  # ids of the special tokens after a text

    @classmethod
    def open(cls, name: str | os.PathLike[str]) -> "TextTokenizer":
        """Load a tokenizer from a folder, a bundled name, a Hub id or a ``meta.pkl`` of nanoGPT."""
        from transformers import AutoTokenizer

        hint = (
            "Copy the tokenizer files into the folder, or pass --tokenizer: the model's own, or "
            "nanoGPT's meta.pkl."
        )
        if Path(name).suffix == ".pkl":
            return cls(_character_tokenizer(Path(name)))
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                BUNDLED.get(str(name), name), trust_remote_code=False
            )
        except (
            Exception
        ) as error:  # transformers raises various types for a folder that it cannot load
            message = (
                f"transformers cannot load a tokenizer from {name}: {type(error).__name__}: "
                f"{one_line(error)}"
            )
            if Path(name).is_dir() and not any(
                (Path(name) / file).exists() for file in TOKENIZER_FILES
            ):
                message = f"No tokenizer found in {name}."
            raise CheckpointError(message, hint) from error
        # Without tokenizer files, transformers can return a tokenizer with an empty vocabulary.
        if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
            raise CheckpointError(f"No tokenizer found in {name}.", hint)
        plain = tokenizer("a", add_special_tokens=False)["input_ids"]
        full = tokenizer("a")["input_ids"]
        start = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), len(full))
        return cls(tokenizer, tuple(full[:start]), tuple(full[start + len(plain) :]))

    @property
    def num_special(self) -> int:
        """The number of special tokens added to each text."""
        return len(self.before) + len(self.after)

    @property
    def separator(self) -> int | None:
        """The token between joined documents, or None."""
        candidates = (self.tokenizer.eos_token_id, self.tokenizer.sep_token_id)
        return next((token for token in candidates if token is not None), None)

    def encode(self, text: str) -> Ids:
        """Return the ids of a text of any length, without special tokens, shape (tokens,)."""
        try:
            ids = self.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)[
                "input_ids"
            ]
        except (
            Exception
        ) as error:  # tokenizers' own type, when a character vocabulary lacks a character
            unknown = "".join(sorted(set(text) - self.tokenizer.get_vocab().keys()))[:40]
            hint = "Use text with characters of its vocabulary."
            raise DataError(f"The tokenizer has no token for {unknown!r}.", hint) from error
        return np.array(ids, np.int64)

    def add_special_tokens(self, ids: Ids) -> Ids:
        """Return ids, shape (k,), with the special tokens before and after, shape (k +
        num_special,).
        """
        return np.concatenate(
            [np.array(self.before, np.int64), ids, np.array(self.after, np.int64)]
        )


def _character_tokenizer(path: Path) -> Any:
    """Return a transformers tokenizer whose tokens are the characters of a ``meta.pkl`` of
    nanoGPT.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from ctxextend.checkpoints.nanogpt import read_characters

    tokenizer = Tokenizer(models.WordLevel(read_characters(path)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class ModelFiles(OpenedModel):
    """An opened checkpoint with its tokenizer, ready to be loaded."""

    rows: (
        int  # rows of the first table, reserved rows included; without a table, the context length
    )
    tokenizer: TextTokenizer

    @property
    def name(self) -> str:
        """The reference that the user passed."""
        return self.ref.source

    @property
    def table(self) -> str:
        """The tensor name of the first table."""
        return self.tables[0].name

    @property
    def has_rows(self) -> bool:
        """Whether the first table has rows, stored or computed."""
        return not self.tables[0].location.table.scheme

    @property
    def max_len(self) -> int:
        """The context length in tokens, special tokens included."""
        return self.tables[0].location.positions(self.rows)

    @property
    def reserved_rows(self) -> int:
        """The number of rows before position 0."""
        return self.rows - self.max_len

    @property
    def scheme(self) -> str:
        """The position scheme; of a table of rows, what they are, whatever the config says (none:
        all are equal).
        """
        location = self.tables[0].location
        table = self.read_table()
        if table is None or location.table.rotates:  # transformers computes it, or it has no rows
            return "rotary" if location.table.rotates else location.scheme
        fit = fit_layout(table[location.reserved_rows :], location.layout)
        return (
            "none"
            if fit is None
            else "sinusoidal"
            if fit.explained > SINUSOIDAL_SHARE
            else "learned"
        )

    def choose_trainable(self, settings: Train) -> tuple[Train, tuple[str, ...]]:
        """Fill in what to train: by default the table, or all else if it is sinusoidal. Also return
        notes.
        """
        (location, name), requested = self.tables[0], settings.trainable
        if settings.contrastive and not (requested or settings.lora):
            return replace(settings, trainable="all"), ()
        if scheme := location.table.scheme:
            reason = f"{scheme} positions have no rows to train"
            if requested in ("new", "positions"):
                hint = "Remove --trainable." if settings.lora else "Use --trainable all."
                raise TrainingError(f"--trainable {requested}: {reason}.", hint)
            everything, weights = (
                ("all-but-positions", "adapters") if settings.lora else ("all", "all weights")
            )
            notes = (
                [] if requested else [f"{reason[0].upper()}{reason[1:]}: {weights} are trained."]
            )
            return replace(settings, trainable=everything), tuple(notes)
        file = self.checkpoint.names.get(name)
        reason = f"transformers does not train {name}"
        if requested == "all-but-positions":
            return settings, ()
        if file is not None and not location.table.is_fixed:
            rows = read_floats(file, name)[location.reserved_rows :]
            if requested or not find_formula(rows, location.layout):
                return replace(settings, trainable=requested or "positions"), ()
            reason = f"{name} equals its formula (train it with --trainable positions)"
        elif requested in ("new", "positions"):
            raise TrainingError(
                f"--trainable {requested}: {reason}.", "Use --trainable all-but-positions."
            )
        note = (
            f"{reason}, so it stays frozen: "
            f"{'adapters' if settings.lora else 'all other weights'} are trained."
        )
        return replace(settings, trainable="all-but-positions"), (note,)

    @property
    def trainings(self) -> list[Mapping[str, Any]]:
        """What its recipe records about the text of each training run."""
        provenance = read_provenance(self.checkpoint)
        own = self.checkpoint.root / self.checkpoint.model
        recorded = (provenance.base.tokenizer if provenance else None) or own
        runs = trainings(provenance)
        if self.ref.tokenizer and os.path.realpath(self.ref.tokenizer) != os.path.realpath(
            recorded
        ):
            # Another tokenizer cuts the text differently, so the recorded held-out windows do not
            # apply.
            runs = [
                {name: value for name, value in run.items() if name != "held_out"} for run in runs
            ]
        return runs


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
    reserved_rows: int = 0  # rows of its table before position 0
    trainings: Sequence[Mapping[str, Any]] = ()  # see `ModelFiles.trainings`
    first_position: int | None = (
        None  # position id of the first token of each text; None: the model's default
    )

    @property
    def max_text(self) -> int:
        """The context length in tokens, without special tokens."""
        return self.max_len - self.tokenizer.num_special

    def position_ids(self, ids: "torch.Tensor") -> "torch.Tensor | None":
        """Return the position ids of texts, both (b, w), that start at `first_position`; None for
        the default.
        """
        import torch

        first = self.first_position
        return (
            None
            if first is None
            else first + torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        )


ModelOrFiles = EvalModel | ModelFiles


class Task(Protocol):
    """Something to measure of a model, and its results so far."""

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads."""

    @property
    def base_tokens(self) -> int:
        """The number of tokens that the base reads."""
        return 0

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """The values that rank models, one array per window or document, each of shape (k,); empty
        if none do.
        """
        return ()

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Run the base, whose results are reused for each model; by default there is nothing to
        run.
        """
        return

    def measure(self, advance: Callable[[int], None]) -> None:
        """Run the model, and the base if it was not run yet; call `advance` with the tokens of each
        step.
        """

    def report(self) -> dict[str, Any]:
        """Return fields of `Evaluation`, with ``warnings`` if there are any."""


def open_files(opened: OpenedModel, hashes: Mapping[str, str] | None = None) -> ModelFiles:
    """Open the tokenizer of a checkpoint, and check its weights with `check_source` and its first
    table.
    """
    checkpoint, (location, name) = opened.checkpoint, opened.tables[0]
    check_source(checkpoint, opened.ref, hashes or {})
    check_loadable(checkpoint, "Resize it first: the output of resize can be loaded.")
    rows = describe_table(checkpoint, opened.tables[0])[0][0]
    if not location.table.scheme:
        check_rows(location, rows, name)
    provenance = read_provenance(checkpoint)
    requested = opened.ref.tokenizer or (provenance.base.tokenizer if provenance else None)
    tokenizer = TextTokenizer.open(requested or checkpoint.root / checkpoint.model)
    return ModelFiles(**vars(opened), rows=rows, tokenizer=tokenizer)


def check_source(checkpoint: Checkpoint, ref: CheckpointRef, hashes: Mapping[str, str]) -> None:
    """Raise CheckpointError if weights differ from a recipe's hashes of tables, or of samples of
    other tensors.
    """
    for name, expected in hashes.items():
        if name == FINGERPRINT:
            actual = checkpoint.weights_fingerprint()
            change = "its tables are the same, but other weights or a header changed"
        else:
            file = checkpoint.names.get(name)
            change = f"table {name} differs"
            actual = table_hash(read_floats(file, name)) if file else ""
        if actual != expected:
            hint = (
                "Restore its weights, or use the changed ones: add --set provenance=null (run) "
                "or --base (train)."
            )
            raise CheckpointError(
                f"{ref.source} has changed since the recipe was written: {change}.", hint
            )


def open_eval_model(
    ref: CheckpointRef,
    precision: str = "auto",
    hashes: Mapping[str, str] | None = None,
    device: str | None = None,
) -> EvalModel:
    """Load a checkpoint with its tokenizer; see `open_files` and `load_eval_model`."""
    return load_eval_model(open_files(open_model(ref), hashes), precision, device)


def auto_precision(device: str) -> str:
    """Return fp32 for a CPU, and bf16 for an accelerator that supports it."""
    import torch

    return (
        "bf16"
        if (device != "cpu" and (device != "cuda" or torch.cuda.is_bf16_supported()))
        else "fp32"
    )


def load_eval_model(
    files: ModelFiles, precision: str = "auto", device: str | None = None
) -> EvalModel:
    """Load the weights of a checkpoint; "auto" is fp32 on a CPU and bf16 on an accelerator that
    supports it.
    """
    name, checkpoint, model_type = (
        files.ref.source,
        files.checkpoint,
        files.architecture.family.model_type,
    )
    device_used = open_device(device)
    precision = auto_precision(device_used.type) if precision == "auto" else precision
    kind, loaded = _load(checkpoint, model_type, DTYPES[precision])
    # Poolers may be missing: no measure uses them.
    wrong = [*loaded.mismatched, *(tensor for tensor in loaded.missing if "pooler." not in tensor)]
    if wrong:
        some = ", ".join(wrong[:3]) + ", ..." * (len(wrong) > 3)
        hint = (
            "Download the checkpoint again, or use the config.json that belongs to these weights."
        )
        raise CheckpointError(
            f"Tensors of {name} are missing or have the wrong shape ({len(wrong)}): {some}.", hint
        )
    if kind == MASKED and files.tokenizer.tokenizer.mask_token_id is None:
        raise CheckpointError(
            f"The tokenizer of {name} has no mask token.", "Use the model's own tokenizer."
        )
    notes, stated = checkpoint.notes, checkpoint.model_class
    if (
        kind == ENCODER
        and stated is not None
        and stated.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel"))
    ):
        notes = (
            *notes,
            f"{checkpoint.root} has no LM head of {stated}, so it is evaluated as an encoder.",
        )
    model = (
        loaded.model
        if loaded.model.device.type == device_used.type
        else loaded.model.to(device_used)
    )
    values = name, checkpoint.root, model_type, kind, model, files.tokenizer, files.max_len
    return EvalModel(*values, notes, files.reserved_rows, files.trainings)


def _load(checkpoint: Checkpoint, model_type: str, dtype: str) -> tuple[str, LoadedModel]:
    """Load a model with its LM head, or as an encoder if its files have no such head."""
    from transformers.models.auto import modeling_auto as auto

    stated = checkpoint.model_class
    if not (checkpoint.root / MODULES).is_file():
        # The config may still state a decoder-only class of an encoder-decoder model type.
        is_seq2seq = model_type in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
        if is_seq2seq and stated not in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            message = (
                f"{stated or model_type} is an encoder-decoder model; only decoders, masked "
                "language models and "
            )
            raise UnsupportedModelError(
                f"{message}encoders are supported here.", "Use verify --deep to test it."
            )
        heads = {
            MASKED: auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
            CAUSAL: auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        }
        # The class in the config if it has an LM head, else those of the model type.
        classes = [
            (kind, stated)
            for kind, names in heads.items()
            if stated is not None and stated in names.values()
        ]
        classes = classes[:1] or [
            (kind, names[model_type]) for kind, names in heads.items() if model_type in names
        ]
        for kind, model_class in classes:
            loaded = load(checkpoint, model_class, dtype)
            if (
                not loaded.missing
            ):  # even the class in the config may need a head that the file lacks
                return kind, loaded
    return ENCODER, load(checkpoint, None, dtype)


def prepare_inputs(
    model: Any, ids: "torch.Tensor", position_ids: "torch.Tensor | None" = None
) -> dict[str, Any]:
    """Return the arguments of a forward pass on ids and position ids, (b, w), without padding or a
    cache.
    """
    import torch

    # BigBird switches to full attention for good when a text is too short for block-sparse
    # attention.
    reset_attention = getattr(model.base_model, "set_attention_type", None)
    if reset_attention is not None:
        reset_attention(model.config.attention_type)
    # Without a mask of ones, some models look for padding in the ids, or for packed texts in the
    # position ids.
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(model.config, "use_cache", None) is not None:
        inputs["use_cache"] = False
    if position_ids is not None:
        inputs["position_ids"] = position_ids
    return inputs


def batches(lengths: Sequence[int], batch_size: int | None = None) -> Iterator[list[int]]:
    """Yield batches of indices of equally long texts, which need no padding; by default up to 4,096
    tokens.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for length, group in groupby(order, key=lengths.__getitem__):
        indices = list(group)
        size = batch_size or max(TOKENS_PER_BATCH // length, 1)
        yield from (indices[start : start + size] for start in range(0, len(indices), size))


@contextmanager
def needs_only_text(model: EvalModel, output: str) -> Iterator[None]:
    """Raise UnsupportedModelError if the model fails to compute an output from text only."""
    try:
        yield
    except Exception as error:  # model classes fail in various ways when inputs are missing
        message = (
            f"{model.name} cannot compute {output} from text only: {type(error).__name__}: "
            f"{one_line(error)}"
        )
        raise UnsupportedModelError(
            message, "Pass a text model, such as the text part of this one."
        ) from error


def check_vocabulary(model: EvalModel, ids: Ids) -> None:
    """Raise CheckpointError if ids are beyond the model's vocabulary."""
    with needs_only_text(model, "embeddings"):
        vocab_size = getattr(model.model.get_input_embeddings(), "num_embeddings", None)
    if vocab_size is not None and ids.max(initial=0) >= vocab_size:
        message = (
            f"{model.name} has a vocabulary of {vocab_size:,}, but its tokenizer returned token "
            f"{ids.max()}."
        )
        raise CheckpointError(
            message, "Pass the model's own tokenizer: --tokenizer NAME (for nanoGPT, its meta.pkl)."
        )


def check_same_tokens(
    model: ModelOrFiles, base: ModelOrFiles, window: Ids, hint: str = PASS_BASE
) -> None:
    """Raise CheckpointError if the tokenizers of two models cut the text of these ids, (tokens,),
    differently.
    """
    tokenizer, other = model.tokenizer, base.tokenizer
    text = tokenizer.tokenizer.decode(window[:COMPARED_TOKENS])
    same_special = (tokenizer.before, tokenizer.after) == (other.before, other.after)
    if not same_special or not np.array_equal(tokenizer.encode(text), other.encode(text)):
        message = (
            f"The tokenizers of {model.name} and {base.name} cut the text into different tokens."
        )
        raise CheckpointError(message, hint)


def position_base(model: EvalModel, option: str) -> int:
    """Return the position id of a model's first usable position: 0, or the number of its reserved
    rows.

    No config states it, so both are tried: with the right base, default positions change nothing
    and others do. If neither works, raise UnsupportedModelError; `option` needs position ids.
    """
    try:
        bases = [base for base in (0, model.reserved_rows) if _counts_from(model, base)]
    except (
        IndexError,
        RuntimeError,
        TypeError,
        ValueError,
    ):  # model classes reject position ids differently
        bases = []
    if not bases:
        reason = f"{model.model_type} models compute positions themselves"
        raise UnsupportedModelError(
            f"{model.name} does not accept position ids: {reason}.", f"Remove {option}."
        )
    return bases[0]


def _counts_from(model: EvalModel, base: int) -> bool:
    """Whether a model's position ids start at `base`, and attention works across a jump in them."""
    import torch

    size = int(model.model.config.get_text_config().vocab_size)

    def output(positions: tuple[int, ...] | None, first: int = 0) -> "torch.Tensor":
        ids = torch.arange(4, device=model.model.device)[None] + min(
            size // 2, 100
        )  # none is padding
        ids[0, 0] -= first
        position_ids = (
            None if positions is None else torch.tensor([positions], device=ids.device) + base
        )
        with torch.inference_mode():
            states: torch.Tensor = model.model(**prepare_inputs(model.model, ids, position_ids))[0]
        return states.float()

    expected, default, reversed_ = output(None), output(DEFAULT), output(REVERSED)
    if (default - expected).abs().max() >= TOLERANCE * (reversed_ - expected).abs().max():
        return False
    return not torch.equal(output(JUMPING)[:, -1], output(JUMPING, first=1)[:, -1])
