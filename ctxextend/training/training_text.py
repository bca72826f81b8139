"""The text of a training run: what to train on, and what to hold out."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ctxextend.checkpoint.atomic_output import atomic_file, os_errors_as_output_error
from ctxextend.errors import DataError
from ctxextend.held_out import HeldOut, TextKey, TrainedText, read_ids, text_key, trained_texts
from ctxextend.text_data import without_surrogates
from ctxextend.training.pair_rows import read_pairs
from ctxextend.training.pairs import number_positives
from ctxextend.training.train_data import Text, open_tokens, write_tokens

if TYPE_CHECKING:
    from ctxextend.training.run import TrainingRun

HELD_OUT_TOKENS = 32_768  # maximum size of the held-out set
# Minimum tokens to read, if the text has as many: one in 20 of them is held out.
MIN_READ = 20 * 65_536
# Full-length windows are held out if the text is at least so many times as long.
MIN_FULL_WINDOWS = 10
MIN_WHOLE_WINDOWS = 8  # of all positions, that are held out of the training of a table in windows
TOKENS_FILE = "data.bin"
TEXTS_FILE = "texts.json"
Facts = dict[str, Any]  # what a recipe records about a text
Notify = Callable[[str], None]


class TrainingText(NamedTuple):
    """The text of a training run as tokens."""

    train: Text
    held_out: Text
    facts: Facts  # for the recipe: files of ``data``, ``held_out``
    seen: tuple[str, ...]  # files of the held-out text that the model was trained on before


def read_training_text(run: "TrainingRun", notify: Notify) -> TrainingText:
    """Tokenize the text into the run folder unless it is there already, and hold out a part of it.

    Raises:
        DataError: The text cannot be read, or is too short.
        OutputError: The run folder cannot be written.
    """
    settings = run.settings
    folder = run.folder.path
    texts_file = folder / TEXTS_FILE
    if not texts_file.exists():
        _tokenize(run, notify)
    files, pairs = json.loads(texts_file.read_text("utf-8"))
    data = open_tokens(folder / TOKENS_FILE)
    trained_before = trained_texts(run.files.trainings)
    seen = [file for file in files if text_key(file) in trained_before]
    names = tuple(file["name"] for file in seen)
    facts = {"data": files}
    if settings.contrastive == "pairs":
        train, held_out = _split_pairs(Text(data, np.array(pairs)))
        return TrainingText(train, held_out, facts, names)
    required = 2 * run.text_length
    if len(data) < required:
        message = (
            f"The text has {len(data):,} tokens, but one sequence to train on and one to hold out "
            f"require {required:,}."
        )
        hint = "Pass more text, or use a shorter --seq-len or --window of ctxextend train."
        raise DataError(message, hint)
    windows = _choose_windows(run, len(data))
    needed = run.whole_text if settings.compares_tables else run.text_length
    earlier = _earlier_windows(seen, trained_before, len(data), settings.text_field)
    # They must be long enough, with text before the first one.
    if earlier is not None and earlier.window >= needed and earlier.spans[:1, 0].any():
        windows = earlier
        names = ()
    facts["held_out"] = asdict(windows)
    train = Text(data, windows.trained_spans)
    return TrainingText(train, Text(data, windows.spans), facts, names)


def _tokenize(run: "TrainingRun", notify: Notify) -> None:
    tokenizer = run.files.tokenizer
    settings = run.settings
    tokens_file = run.folder.path / TOKENS_FILE
    files = list[Facts]()
    pairs = list[Any]()  # first token and end of each text of each pair
    if settings.contrastive == "pairs":
        rows = read_pairs(settings.data)
        files = rows.files
        encoded = (tokenizer.encode(without_surrogates(text)) for text in rows.texts)
        sizes = write_tokens(encoded, tokens_file, notify)
        ends = np.cumsum(sizes)
        pairs = np.stack([ends - sizes, ends], axis=1)[np.array(rows.pairs)].tolist()
    else:
        most = settings.tokens
        if most is None:
            trained = settings.steps * settings.batch_size * run.text_length
            # Short runs read more text than they train on, so that enough is held out.
            most = max(math.ceil(trained * 20 / 19), MIN_READ) + 2 * run.span
        ids = read_ids(
            settings.data,
            settings.text_field,
            tokenizer.encode,
            tokenizer.separator,
            most,
            files,
        )
        write_tokens(ids, tokens_file, notify)
    texts_file = run.folder.path / TEXTS_FILE
    with os_errors_as_output_error(texts_file), atomic_file(texts_file) as staged:
        staged.write_text(json.dumps([files, pairs]), "utf-8")


def _split_pairs(text: Text) -> tuple[Text, Text]:
    """Return the pairs to train on, and those to hold out: all pairs of one positive in 20."""
    positives = number_positives(text)
    # One "window" is one positive.
    held_out = HeldOut.for_text(tokens=int(positives.max()) + 1, window=1).spans[:, 0]
    is_held_out = np.isin(positives, held_out)
    train = Text(text.tokens, text.spans[~is_held_out])
    return train, Text(text.tokens, text.spans[is_held_out])


def _choose_windows(run: "TrainingRun", tokens: int) -> HeldOut:
    """Return the windows of a text to hold out.

    If there is enough text, they have full length, so that `evaluate` can use them too. Runs
    that compare tables hold out more of a short text.
    """
    whole = run.whole_text
    if run.settings.compares_tables and tokens >= 2 * MIN_WHOLE_WINDOWS * whole:
        return HeldOut.for_text(tokens, whole, at_least=MIN_WHOLE_WINDOWS)
    if tokens >= MIN_FULL_WINDOWS * whole:
        return HeldOut.for_text(tokens, whole)
    return HeldOut.for_text(tokens, run.text_length)


def _earlier_windows(
    seen: Sequence[Facts],
    trained_before: Mapping[TextKey, set[TrainedText]],
    tokens: int,
    text_field: str,
) -> HeldOut | None:
    """Return what all earlier runs held out of this text; None if they differ or it is not known.

    The rest of the text was trained on.
    """
    earlier = set[HeldOut]()
    for file in seen:
        for run in trained_before[text_key(file)]:
            is_same_text = (run.first_token, run.text_field) == (file["first_token"], text_field)
            if run.held_out is None or not is_same_text:
                return None
            earlier.add(replace(run.held_out, tokens=tokens))
    if len(earlier) != 1:
        return None
    return earlier.pop()
