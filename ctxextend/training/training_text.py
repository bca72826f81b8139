"""The text of a training run: what to train on, and what to hold out."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ctxextend.checkpoint.atomic_output import atomic_file, os_errors_as_output_error
from ctxextend.errors import DataError, flag_name
from ctxextend.held_out import HeldOut, TextKey, TrainedText, read_ids, text_key, trained_texts
from ctxextend.lab.eval_model import ResizableFiles
from ctxextend.lab.text_tokenizer import TextTokenizer
from ctxextend.settings import Train
from ctxextend.text_data import without_surrogates
from ctxextend.training import train_data
from ctxextend.training.pair_rows import read_pairs
from ctxextend.training.pairs import PairedText
from ctxextend.training.train_data import Text, Tokens
from ctxextend.training.training_run import RunFolder

if TYPE_CHECKING:
    from accelerate import PartialState

HELD_OUT_TOKENS = 32_768  # maximum size of the held-out set
# Minimum tokens to read, if the text has as many: one in 20 of them is held out.
MIN_READ = 20 * 65_536
# Full-length windows are held out if the text is at least so many times as long.
MIN_FULL_WINDOWS = 10
MIN_WHOLE_WINDOWS = 8  # of all positions, that are held out of the training of a table in windows
TEXTS_FILE = "texts.json"
Facts = dict[str, Any]  # what a recipe records about a text
# What the run folder contains of a pair: the first token and the end of each of its texts.
PairRow = list[int]


class SequenceLengths(NamedTuple):
    """Lengths of the sequences of a run, in tokens or positions."""

    span: int  # positions available to a sequence
    length: int  # tokens per sequence, special tokens included
    special: int  # special tokens of a sequence

    @classmethod
    def of_run(cls, files: ResizableFiles, settings: Train) -> "SequenceLengths":
        """Return the lengths for a model and settings."""
        span = settings.seq_len or files.max_len
        return cls(
            span=span,
            length=settings.window or span,
            special=files.tokenizer.num_special,
        )

    @property
    def text(self) -> int:
        """Tokens per sequence without special tokens."""
        return self.length - self.special

    @property
    def whole(self) -> int:
        """Tokens of the longest text that all positions can read, without special tokens."""
        return self.span - self.special


@dataclass(frozen=True)
class TrainingText:
    """The text of a training run as tokens."""

    train: Text | PairedText
    held_out: Text | PairedText
    facts: Mapping[str, Any]  # for the recipe: files of ``data`` and ``eval_data``, ``held_out``
    # Files of the held-out text that the model was trained on before.
    seen: tuple[str, ...] = ()


class _ReadText(NamedTuple):
    """A text that is in the run folder."""

    tokens: Tokens  # shape (tokens,)
    files: list[Facts]  # that it was read from
    pairs: list[PairRow]  # empty unless the text was read as pairs

    @property
    def paired(self) -> PairedText:
        """The text as pairs, if it was read as pairs."""
        spans = np.array(self.pairs).reshape(len(self.pairs), -1, 2)
        return PairedText(tokens=self.tokens, spans=spans)


def read_training_text(
    files: ResizableFiles,
    settings: Train,
    devices: "PartialState",
    folder: RunFolder,
    notify: Callable[[str], None],
) -> TrainingText:
    """Tokenize the text into the run folder unless it is there already, and hold out a part of it.

    Raises:
        DataError: The text cannot be read, or is too short.
        OutputError: The run folder cannot be written.
    """
    lengths = SequenceLengths.of_run(files, settings)
    if devices.is_main_process and not (folder.path / TEXTS_FILE).exists():
        _tokenize(files.tokenizer, settings, lengths, folder, notify)
    read, pairs_read = json.loads((folder.path / TEXTS_FILE).read_text("utf-8"))
    texts = dict[str, _ReadText]()  # `data`, and `eval_data` if there is one
    for name in read:
        tokens = train_data.open_tokens(folder.path / f"{name}.bin")
        texts[name] = _ReadText(tokens=tokens, files=read[name], pairs=pairs_read[name])
    facts: Facts = {name: text.files for name, text in texts.items()}
    trained_before = trained_texts(files.trainings)
    source_of_held_out = texts.get("eval_data", texts["data"])
    seen = [file for file in source_of_held_out.files if text_key(file) in trained_before]
    names = tuple(file["name"] for file in seen)
    if settings.contrastive == "pairs":
        pairs, held_out_pairs = _split_pairs(texts)
        return TrainingText(train=pairs, held_out=held_out_pairs, facts=facts, seen=names)
    _check_length(texts, lengths)
    tokens = texts["data"].tokens
    if "eval_data" in texts:
        train = Text.whole(tokens)
        held_out = Text.whole(texts["eval_data"].tokens)
        return TrainingText(train=train, held_out=held_out, facts=facts, seen=names)
    windows = _choose_windows(len(tokens), lengths, settings)
    needed = lengths.whole if settings.compares_tables else lengths.text
    earlier = _earlier_windows(seen, trained_before, len(tokens), settings.text_field)
    # They must be long enough, with text before the first one.
    if earlier is not None and earlier.window >= needed and earlier.spans[:1, 0].any():
        windows = earlier
        names = ()
    facts["held_out"] = asdict(windows)
    train = Text(tokens=tokens, spans=windows.trained_spans)
    held_out = Text(tokens=tokens, spans=windows.spans)
    return TrainingText(train=train, held_out=held_out, facts=facts, seen=names)


def _tokenize(
    tokenizer: TextTokenizer,
    settings: Train,
    lengths: SequenceLengths,
    folder: RunFolder,
    notify: Callable[[str], None],
) -> None:
    read = dict[str, list[Facts]]()
    pairs = dict[str, list[PairRow]]()
    most = settings.tokens
    if most is None:
        trained = settings.steps * settings.batch_size * lengths.text
        # Short runs read more text than they train on, so that enough is held out.
        most = max(math.ceil(trained * 20 / 19), MIN_READ) + 2 * lengths.span
    texts = {"data": (settings.data, most)}
    if settings.eval_data:
        texts["eval_data"] = (settings.eval_data, HELD_OUT_TOKENS + lengths.text)
    for name, (paths, maximum) in texts.items():
        tokens_file = folder.path / f"{name}.bin"
        if settings.contrastive == "pairs":
            rows = read_pairs(paths)
            encoded = (tokenizer.encode(without_surrogates(text)) for text in rows.texts)
            sizes = train_data.write_tokens(encoded, tokens_file, notify)
            read[name] = rows.files
            pairs[name] = rows.spans(sizes).reshape(len(rows.pairs), -1).tolist()
        else:
            read[name] = []
            pairs[name] = []
            ids = read_ids(
                paths,
                settings.text_field,
                tokenizer.encode,
                tokenizer.separator,
                maximum,
                read[name],
            )
            train_data.write_tokens(ids, tokens_file, notify)
    texts_file = folder.path / TEXTS_FILE
    with os_errors_as_output_error(texts_file), atomic_file(texts_file) as staged:
        staged.write_text(json.dumps([read, pairs]), "utf-8")


def _check_length(texts: Mapping[str, _ReadText], lengths: SequenceLengths) -> None:
    use = "one sequence to train on and one to hold out require"
    required = 2 * lengths.text
    if "eval_data" in texts:
        use = "a sequence requires"
        required = lengths.text
    for name, text in texts.items():
        tokens = len(text.tokens)
        if tokens < required:
            label = f"The text of {flag_name(name)}" if len(texts) > 1 else "The text"
            hint = "Pass more text, or use a shorter --seq-len or --window of ctxextend train."
            raise DataError(f"{label} has {tokens:,} tokens, but {use} {required:,}.", hint)


def _split_pairs(texts: Mapping[str, _ReadText]) -> tuple[PairedText, PairedText]:
    """Return the pairs to train on, and the pairs to hold out.

    Without other text to hold out, these are all pairs of one positive in 20.
    """
    text = texts["data"].paired
    if "eval_data" in texts:
        return text, texts["eval_data"].paired
    positives = text.positive_of_pair
    # One "window" is one positive.
    chosen = HeldOut.for_text(tokens=int(positives.max()) + 1, window=1).spans[:, 0]
    is_held_out = np.isin(positives, chosen)
    return text.select(~is_held_out), text.select(is_held_out)


def _choose_windows(tokens: int, lengths: SequenceLengths, settings: Train) -> HeldOut:
    """Return the windows of a text to hold out.

    If there is enough text, they have full length, so that `evaluate` can use them too. Runs
    that compare tables hold out more of a short text.
    """
    if settings.compares_tables and tokens >= 2 * MIN_WHOLE_WINDOWS * lengths.whole:
        return HeldOut.for_text(tokens, lengths.whole, at_least=MIN_WHOLE_WINDOWS)
    if tokens >= MIN_FULL_WINDOWS * lengths.whole:
        return HeldOut.for_text(tokens, lengths.whole)
    return HeldOut.for_text(tokens, lengths.text)


def _earlier_windows(
    seen: Sequence[Facts],
    trained_before: Mapping[TextKey, set[TrainedText]],
    tokens: int,
    text_field: str,
) -> HeldOut | None:
    """Return what all earlier runs held out of this text; None if they differ or it is not known.

    The rest of the text was trained on.
    """
    found = set[HeldOut | None]()
    for file in seen:
        place = (file["first_token"], text_field)
        for run in trained_before[text_key(file)]:
            if run.held_out is None or (run.first_token, run.text_field) != place:
                return None
            found.add(replace(run.held_out, tokens=tokens))
    if len(found) != 1:
        return None
    return found.pop()
