"""A checkpoint loaded to be measured or trained: the model, its tokenizer, and how many tokens it reads at once."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import read_floats
from ctxextend.checkpoints.source import BUNDLED
from ctxextend.errors import CheckpointError, DataError, UnsupportedModelError, one_line
from ctxextend.held_out import Ids, TextKey, TrainedText, trained_texts
from ctxextend.inspection.stated_limits import TOKENIZER_FILES
from ctxextend.models.devices import open_device
from ctxextend.models.load import Loaded, check_loadable, load
from ctxextend.plan.find_tables import OpenedModel, check_rows, describe_table, open_model
from ctxextend.plan.plan import table_hash
from ctxextend.recipe import CheckpointRef
from ctxextend.recipe_file import FINGERPRINT, read_provenance, trainings

if TYPE_CHECKING:
    import torch

# What a model was trained for: the next token, a masked one, or vectors of texts.
CAUSAL, MASKED, ENCODER = "causal", "masked", "encoder"

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

SENTENCE_MODULES = "modules.json"  # by which sentence-transformers knows a folder of its own
NAME_BASE = "Name its base checkpoint with --base of evaluate (evaluate.base in a recipe)."

COMPARED = 512  # tokens by which two tokenizers are compared
TOKENS_AT_ONCE = 4096  # that a model reads where nothing else is asked for


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer, and the special tokens that it puts around every text."""

    tokenizer: Any  # of transformers
    before: tuple[int, ...] = ()  # ids of the special tokens before a text
    after: tuple[int, ...] = ()  # ids of those after it

    @classmethod
    def open(cls, name: str | os.PathLike[str]) -> "TextTokenizer":
        """Load a tokenizer from a folder, by a bundled name or a Hub id, or from a ``meta.pkl`` of nanoGPT."""
        from transformers import AutoTokenizer

        hint = "Put the tokenizer's files into the folder, or name one that is elsewhere: --tokenizer gpt2."
        if Path(name).suffix == ".pkl":
            return cls(_character_tokenizer(Path(name)))
        try:
            tokenizer = AutoTokenizer.from_pretrained(BUNDLED.get(str(name), name), trust_remote_code=False)
        except Exception as error:  # whatever a tokenizer of transformers raises on a folder that it cannot load
            said = f"transformers cannot load a tokenizer from {name}: {type(error).__name__}: {one_line(error)}"
            if Path(name).is_dir() and not any((Path(name) / file).exists() for file in TOKENIZER_FILES):
                said = f"There is no tokenizer in {name}."
            raise CheckpointError(said, hint) from error
        # Where there are no files, transformers makes one whose vocabulary is empty.
        if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
            raise CheckpointError(f"There is no tokenizer in {name}.", hint)
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = tokenizer("a")["input_ids"]
        start = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), len(whole))
        return cls(tokenizer, tuple(whole[:start]), tuple(whole[start + len(bare) :]))

    @property
    def num_special(self) -> int:
        """Special tokens of every text."""
        return len(self.before) + len(self.after)

    @property
    def separator(self) -> int | None:
        """The token between documents that are joined; None where there is none."""
        known = (self.tokenizer.eos_token_id, self.tokenizer.sep_token_id)
        return next((token for token in known if token is not None), None)

    def encode(self, text: str) -> Ids:
        """Return the ids of a text without special tokens, however long it is, shape (tokens,)."""
        try:
            ids = self.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        except Exception as error:  # the library's own, where a vocabulary of characters lacks one
            unknown = "".join(sorted(set(text) - self.tokenizer.get_vocab().keys()))[:40]
            hint = "Name text of characters that it knows."
            raise DataError(f"The tokenizer has no token for {unknown!r}.", hint) from error
        return np.array(ids, np.int64)

    def add_special_tokens(self, ids: Ids) -> Ids:
        """Return the ids of a text, shape (k,), between its special tokens, shape (k + num_special,)."""
        return np.concatenate([np.array(self.before, np.int64), ids, np.array(self.after, np.int64)])


def _character_tokenizer(path: Path) -> Any:
    """Return the tokenizer of transformers whose tokens are the characters of a ``meta.pkl`` of nanoGPT."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from ctxextend.checkpoints.nanogpt import read_characters

    tokenizer = Tokenizer(models.WordLevel(read_characters(path)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class ModelFiles(OpenedModel):
    """An opened checkpoint that can be loaded to read texts."""

    rows: int  # of the first table, which reads texts, reserved ones included
    tokenizer: TextTokenizer

    @property
    def table(self) -> str:
        """The first table's tensor."""
        return self.tables[0].name

    @property
    def max_len(self) -> int:
        """Tokens that it reads at once, special tokens included."""
        return self.tables[0].location.positions(self.rows)

    @property
    def reserved_rows(self) -> int:
        """The table's rows before position 0."""
        return self.rows - self.max_len

    @property
    def trained_on(self) -> Mapping[TextKey, Collection[TrainedText]]:
        """How it was trained on each text, as far as its recipe says so."""
        written, own = read_provenance(self.checkpoint), self.checkpoint.root / self.checkpoint.model
        known, runs = (written.base.tokenizer if written else None) or own, trainings(written)
        if self.ref.tokenizer and os.path.realpath(self.ref.tokenizer) != os.path.realpath(known):
            # With another tokenizer, the windows held out are other text.
            runs = [{name: value for name, value in run.items() if name != "held_out"} for run in runs]
        return trained_texts(runs)


@dataclass(frozen=True)
class EvalModel:
    """A checkpoint loaded to read texts."""

    name: str  # what the user called it
    root: Path  # the checkpoint's folder
    model_type: str
    kind: str  # `CAUSAL`, `MASKED` or `ENCODER`
    model: Any  # of transformers, on its device, not in training
    tokenizer: TextTokenizer
    max_len: int  # tokens that it reads at once, special tokens included
    notes: tuple[str, ...] = ()
    reserved_rows: int = 0  # rows of its table before position 0
    trained_on: Mapping[TextKey, Collection[TrainedText]] = field(default_factory=dict)  # as `ModelFiles`

    @property
    def max_text(self) -> int:
        """Tokens of text that it reads at once, special tokens left out."""
        return self.max_len - self.tokenizer.num_special


def open_files(opened: OpenedModel, hashes: Mapping[str, str] | None = None) -> ModelFiles:
    """Read the tokenizer of a checkpoint, and the size of the table that reads its texts; see `check_source`."""
    checkpoint, (place, name) = opened.checkpoint, opened.tables[0]
    check_source(checkpoint, opened.ref, hashes or {})
    check_loadable(checkpoint, "Resize it first: what resize writes can be loaded.")
    rows = describe_table(checkpoint, name)[0][0]
    check_rows(place, rows, name)
    written = read_provenance(checkpoint)
    named = opened.ref.tokenizer or (written.base.tokenizer if written else None)
    tokenizer = TextTokenizer.open(named or checkpoint.root / checkpoint.model)
    return ModelFiles(**vars(opened), rows=rows, tokenizer=tokenizer)


def check_source(checkpoint: Checkpoint, ref: CheckpointRef, hashes: Mapping[str, str], then: str = "then") -> None:
    """Refuse a checkpoint whose weights are not those that a recipe records: tables whole, others by samples."""
    for name, known in hashes.items():
        if name == FINGERPRINT:
            found = checkpoint.weights_fingerprint()
            what = "its tables are the same, but other weights or a header changed"
        else:
            file, what = checkpoint.names.get(name), f"its table {name} is another"
            found = table_hash(read_floats(file, name)) if file else ""
        if found != known:
            raise CheckpointError(f"{ref.source} is no longer what it was {then}: {what}.")


def open_eval_model(
    ref: CheckpointRef, precision: str = "auto", hashes: Mapping[str, str] | None = None, device: str | None = None
) -> EvalModel:
    """Load a checkpoint with its tokenizer; see `open_files` and `load_eval_model`."""
    return load_eval_model(open_files(open_model(ref), hashes), precision, device)


def auto_precision(device: str) -> str:
    """Return fp32 on a CPU, and bf16 on an accelerator that has it."""
    import torch

    has_bfloat = device != "cpu" and (device != "cuda" or torch.cuda.is_bf16_supported())
    return "bf16" if has_bfloat else "fp32"


def load_eval_model(files: ModelFiles, precision: str = "auto", device: str | None = None) -> EvalModel:
    """Load the weights of a checkpoint; `auto` is fp32 on a CPU, and bf16 on an accelerator that has it."""
    name, checkpoint, family = files.ref.source, files.checkpoint, files.architecture.family.model_type
    place = open_device(device)
    precision = auto_precision(place.type) if precision == "auto" else precision
    kind, loaded = _load(checkpoint, family, DTYPES[precision])
    # No measure uses a pooler.
    wrong = [*loaded.mismatched, *(tensor for tensor in loaded.missing if "pooler." not in tensor)]
    if wrong:
        some = ", ".join(wrong[:3]) + ", ..." * (len(wrong) > 3)
        hint = "Fetch the checkpoint again, or put the config.json beside it that belongs to the weights."
        raise CheckpointError(f"{name} lacks {len(wrong)} tensors of the shapes that its config says: {some}.", hint)
    if kind == MASKED and files.tokenizer.tokenizer.mask_token_id is None:
        raise CheckpointError(f"The tokenizer of {name} has no mask token.", "Use the model's own tokenizer.")
    notes, named = checkpoint.notes, checkpoint.model_class
    if kind == ENCODER and named is not None and named.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel")):
        notes = (*notes, f"{checkpoint.root} holds no head of a {named}, so it is measured as an encoder.")
    known = name, checkpoint.root, family, kind, loaded.model.to(place), files.tokenizer, files.max_len
    return EvalModel(*known, notes, files.reserved_rows, files.trained_on)


def _load(checkpoint: Checkpoint, model_type: str, dtype: str) -> tuple[str, Loaded]:
    """Load a model by a class that has a language-model head, or as an encoder where its file holds no such head."""
    from transformers.models.auto import modeling_auto as auto

    named = checkpoint.model_class
    if not (checkpoint.root / SENTENCE_MODULES).is_file():
        # A model of such a type may still be its decoder alone.
        is_pair = model_type in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
        if is_pair and named not in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            what = f"{named or model_type} reads one text and writes another; decoders, masked language models and "
            raise UnsupportedModelError(f"{what}encoders are measured.", "Use verify --deep to see that it runs.")
        heads = {MASKED: auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, CAUSAL: auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
        # The class that the config names where it has a head, else those of the type.
        tried = [(kind, named) for kind, classes in heads.items() if named is not None and named in classes.values()]
        tried = tried[:1] or [(kind, classes[model_type]) for kind, classes in heads.items() if model_type in classes]
        for kind, model_class in tried:
            loaded = load(checkpoint, model_class, dtype)
            if not loaded.missing:  # even a class that its config names may need a head that the file never had
                return kind, loaded
    return ENCODER, load(checkpoint, None, dtype)


def prepare_inputs(model: Any, ids: "torch.Tensor", position_ids: "torch.Tensor | None" = None) -> dict[str, Any]:
    """Return the arguments of a forward pass of a model of transformers that reads whole texts and keeps no cache.

    Texts and positions, as the model counts them, are of shape (b, w), int64, on its device; None is from the start.
    """
    import torch

    # BigBird leaves the attention that its config names for good when it reads a text that is too short for it.
    reset_attention = getattr(model.base_model, "set_attention_type", None)
    if reset_attention is not None:
        reset_attention(model.config.attention_type)
    # A mask of ones: without one, some models look for padding in the ids, or for several texts in the positions.
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(model.config, "use_cache", None) is not None:
        inputs["use_cache"] = False
    if position_ids is not None:
        inputs["position_ids"] = position_ids
    return inputs


def batches(lengths: Sequence[int], batch_size: int | None = None) -> Iterator[list[int]]:
    """Yield numbers of texts of one length, which need no padding; by default as many as hold 4,096 tokens."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for length, group in groupby(order, key=lengths.__getitem__):
        numbers, size = list(group), batch_size or max(TOKENS_AT_ONCE // length, 1)
        yield from (numbers[start : start + size] for start in range(0, len(numbers), size))


@contextmanager
def reads_only_text(model: EvalModel, what: str) -> Iterator[None]:
    """Refuse a model that fails here to give `what` of a text and nothing else."""
    try:
        yield
    except Exception as error:  # each class has its own way to miss what it was not given
        said = f"{model.name} gives no {what} of a text alone: {type(error).__name__}: {one_line(error)}"
        raise UnsupportedModelError(said, "Name a checkpoint of a model of texts, such as its text part.") from error


def check_vocabulary(model: EvalModel, ids: Ids) -> None:
    """Refuse ids that a model has no embedding for."""
    with reads_only_text(model, "embeddings"):
        vocab_size = getattr(model.model.get_input_embeddings(), "num_embeddings", None)
    if vocab_size is not None and ids.max(initial=0) >= vocab_size:
        what = f"The tokenizer of {model.name} gives the token {ids.max()}, and the model knows {vocab_size:,} tokens."
        raise CheckpointError(what, "Put the tokenizer's files into the folder that belong to the model.")


def check_same_tokens(model: EvalModel, base: EvalModel, window: Ids) -> None:
    """Refuse to compare models token by token whose tokenizers cut the text of these ids, (tokens,), differently."""
    own, other = model.tokenizer, base.tokenizer
    text = own.tokenizer.decode(window[:COMPARED])
    same_special = (own.before, own.after) == (other.before, other.after)
    if not same_special or not np.array_equal(own.encode(text), other.encode(text)):
        what = f"The tokenizers of {model.name} and {base.name} cut the text into different tokens."
        raise CheckpointError(what, NAME_BASE)
