"""Read the text of an evaluation without what the models were trained on."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from ctxextend import held_out
from ctxextend.evaluation.eval_model import ModelOrFiles
from ctxextend.evaluation.text_tokenizer import TextTokenizer
from ctxextend.evaluation.windows import refuse_short_text
from ctxextend.held_out import HeldOut, Ids, TrainedText
from ctxextend.settings import Evaluate
from ctxextend.text_data import TextSource, check_paths, read_documents

CHARACTERS_PER_TOKEN = 100  # read of each document; tokens are rarely longer


class UnseenText(NamedTuple):
    """The documents of a text, without what models were trained on if that is known."""

    documents: Iterator[Ids]
    warnings: list[str]  # about the files that a model was trained on


class TrainedFiles(NamedTuple):
    """The files of a text that a model was trained on."""

    held_out_parts: dict[TextSource, list[Ids]]  # the documents in known held-out windows, by file
    others: list[TextSource]  # files without known held-out windows


def read_unseen(models: Sequence[ModelOrFiles], settings: Evaluate, minimum: int) -> UnseenText:
    """Return the documents of a text, and warnings about those that a model was trained on.

    Of files that a model was trained on, only the held-out windows are read. Files with unknown
    held-out windows are read in full. So are all files if each has held-out windows, but together
    they have fewer than `minimum` tokens.

    Raises:
        DataError: The text cannot be read.
    """
    maximum = max(settings.tokens, *(model.max_len for model in models))
    tokenizer = models[0].tokenizer
    sources = check_paths(settings.data)
    trained = _find_trained(models, settings, sources, max(maximum, minimum))
    tokens = 0
    for documents in trained.held_out_parts.values():
        tokens += sum(len(document) for document in documents)
    has_other_text = len(trained.held_out_parts) < len(sources)
    if tokens < minimum and not has_other_text:
        trained = TrainedFiles(held_out_parts={}, others=[*trained.held_out_parts])

    def read() -> Iterator[Ids]:
        for source in sources:
            if source in trained.held_out_parts:
                yield from trained.held_out_parts[source]
            else:
                yield from _read_source(source, settings.text_field, tokenizer, maximum)

    names = [model.name for model in models if model.trainings]
    name = f"One of {', '.join(names)}" if len(names) > 1 else "".join(names)
    read_in_full = f"{held_out.NO_HELD_OUT} text with --data."
    only_held_out = f": only the {tokens:,} held-out tokens are used."
    warnings = [
        *held_out.trained_on_warnings(name, trained.others, read_in_full),
        *held_out.trained_on_warnings(name, trained.held_out_parts, only_held_out),
    ]
    return UnseenText(documents=read(), warnings=warnings)


def read_start(
    unseen: UnseenText, size: int, separator: int | None, hint: str = ""
) -> tuple[Ids, UnseenText]:
    """Return the first tokens of a text, at least `size`, and the text with them again.

    Args:
        unseen: The text.
        size: Tokens of a window.
        separator: The token that follows each document in windows, or None.
        hint: What to do if the text is too short; by default, to use shorter windows.

    Raises:
        DataError: The text is too short for a window.
    """
    read = list[Ids]()
    tokens = 0
    for document in unseen.documents:
        read.append(document)
        tokens += len(document)
        if tokens >= size:
            break
    separators = 0 if separator is None else len(read)
    if tokens + separators < size:
        refuse_short_text(tokens, size, hint=hint)
    start = np.concatenate([np.empty(0, np.int64), *read])
    return start, unseen._replace(documents=chain(read, unseen.documents))


def _find_trained(
    models: Sequence[ModelOrFiles],
    settings: Evaluate,
    sources: Sequence[TextSource],
    maximum: int,
) -> TrainedFiles:
    """Find the files that a model was trained on, and read at most about `maximum` tokens of each.

    Held-out windows are only known if all runs held out the same ones, with this text field.
    """
    found = TrainedFiles(held_out_parts={}, others=[])
    trained_texts = held_out.trained_texts(run for model in models for run in model.trainings)
    if not trained_texts:
        return found
    tokenizer = models[0].tokenizer
    for source in sources:
        runs = list(trained_texts.get(held_out.text_key(held_out.fingerprint(source)), ()))
        if not runs:
            continue
        run = runs[0]
        if len(runs) > 1 or run.held_out is None or run.text_field != settings.text_field:
            found.others.append(source)
        else:
            found.held_out_parts[source] = _read_held_out(
                source, run, run.held_out, tokenizer, maximum
            )
    return found


def _read_held_out(
    source: TextSource, run: TrainedText, rule: HeldOut, tokenizer: TextTokenizer, maximum: int
) -> list[Ids]:
    """Return the documents in held-out windows of a file, of about `maximum` tokens.

    Args:
        source: The file.
        run: How it was trained on.
        rule: What that held out.
        tokenizer: Tokenizes the file.
        maximum: The number of tokens that are enough.
    """
    trained_tokens = rule.tokens - run.first_token
    # One window of `every` is held out. Twice the maximum leaves room for what is not used, and one
    # window more for one that starts before the file.
    enough = (2 * maximum + rule.window) * rule.every
    separator = tokenizer.separator
    chunks = held_out.read_ids(
        [str(source)],
        run.text_field,
        tokenizer.encode,
        separator,
        min(trained_tokens, enough),
    )
    ids = np.concatenate([np.empty(0, np.int64), *chunks])
    windows = held_out.held_out_windows(ids, rule, run.first_token)
    return held_out.split_documents(windows, separator)


def _read_source(
    source: TextSource, text_field: str, tokenizer: TextTokenizer, maximum: int
) -> Iterator[Ids]:
    """Yield the first tokens of each document of a file."""
    texts: Iterable[str] = read_documents([str(source)], text_field, CHARACTERS_PER_TOKEN * maximum)
    for text in texts:
        yield _first_tokens(tokenizer, text, maximum)


def _first_tokens(tokenizer: TextTokenizer, text: str, maximum: int) -> Ids:
    """Return at most so many first tokens of a text without tokenizing much more of it."""
    size = 8 * maximum
    ids = tokenizer.encode(text[:size])
    while len(ids) <= maximum and size < len(text):
        size *= 4
        ids = tokenizer.encode(text[:size])
    return ids[:maximum]
