"""Read the text of an evaluation without what the models were trained on."""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from ctxextend import held_out
from ctxextend.held_out import Ids
from ctxextend.lab.eval_model import ModelOrFiles
from ctxextend.lab.texts import refuse_short_text
from ctxextend.settings import Evaluate
from ctxextend.text_data import TextSource, check_paths, read_documents

CHARACTERS_PER_TOKEN = 100  # read of each document; tokens are rarely longer


def read_unseen(
    models: Sequence[ModelOrFiles], settings: Evaluate, length: int
) -> tuple[Iterator[Ids], list[str]]:
    """Return the documents of a text, and warnings about those that a model was trained on.

    Of files that a model was trained on, only the held-out windows are read. Files with unknown
    held-out windows are read in full. So are all files if each has held-out windows, but together
    they have fewer tokens than a window of `length`.

    Raises:
        DataError: The text cannot be read.
    """
    maximum = max(settings.tokens, length, *(model.max_len for model in models))
    tokenizer = models[0].tokenizer
    minimum = length - tokenizer.num_special
    sources = check_paths(settings.data)
    held_out_parts, others = _find_trained(models, settings, sources, maximum)
    tokens = 0
    for documents in held_out_parts.values():
        tokens += sum(len(document) for document in documents)
    has_other_text = len(held_out_parts) < len(sources)
    if tokens < minimum and not has_other_text:
        others = [*held_out_parts]
        held_out_parts = {}

    def read() -> Iterator[Ids]:
        size = CHARACTERS_PER_TOKEN * maximum
        for source in sources:
            if source in held_out_parts:
                yield from held_out_parts[source]
            else:
                for text in read_documents([str(source)], settings.text_field, size):
                    # The first tokens, without tokenizing much more.
                    tokenized = 8 * maximum
                    ids = tokenizer.encode(text[:tokenized])
                    while len(ids) <= maximum and tokenized < len(text):
                        tokenized *= 4
                        ids = tokenizer.encode(text[:tokenized])
                    yield ids[:maximum]

    warnings = list[str]()
    for model in models:
        trained = held_out.trained_texts(model.trainings)
        if not trained:
            continue
        own = [text for text in (*others, *held_out_parts) if _key(text) in trained]
        in_full = [text for text in own if text in others]
        in_part = [text for text in own if text in held_out_parts]
        read_in_full = f"{held_out.NO_HELD_OUT} text with --data."
        only_held_out = f": only the {tokens:,} held-out tokens are used."
        warnings += held_out.trained_on_warnings(model.name, in_full, read_in_full)
        warnings += held_out.trained_on_warnings(model.name, in_part, only_held_out)
    return read(), warnings


def _key(source: TextSource) -> held_out.TextKey:
    return held_out.text_key(held_out.fingerprint(source))


def read_start(
    documents: Iterator[Ids], size: int, separator: int | None
) -> tuple[Ids, Iterator[Ids]]:
    """Return the first tokens of a text, at least `size`, and all of its documents.

    `separator` is the token that follows each document in windows, or None.

    Raises:
        DataError: The text is too short for a window.
    """
    read = []
    tokens = 0
    for document in documents:
        read.append(document)
        tokens += len(document)
        if tokens >= size:
            break
    separators = 0 if separator is None else len(read)
    if tokens + separators < size:
        refuse_short_text(tokens, size)
    start = np.concatenate([np.empty(0, np.int64), *read])
    return start, chain(read, documents)


def _find_trained(
    models: Sequence[ModelOrFiles],
    settings: Evaluate,
    sources: Sequence[TextSource],
    maximum: int,
) -> tuple[dict[TextSource, list[Ids]], list[TextSource]]:
    """Return the files that a model was trained on: those with known held-out windows, and others.

    At most about `maximum` tokens are read of each: the documents in its held-out windows. These
    are only known if all runs held out the same ones, with this text field.
    """
    held_out_parts = dict[TextSource, list[Ids]]()
    others = list[TextSource]()
    trained_texts = held_out.trained_texts(run for model in models for run in model.trainings)
    if not trained_texts:
        return held_out_parts, others
    tokenizer = models[0].tokenizer
    for source in sources:
        runs = list(trained_texts.get(_key(source), ()))
        if not runs:
            continue
        run = runs[0]
        rule = run.held_out
        if len(runs) > 1 or rule is None or run.text_field != settings.text_field:
            others.append(source)
            continue
        # One window of `every` is held out. Twice the maximum leaves room for what is not used, and
        # one window more for one that starts before the file.
        enough = (2 * maximum + rule.window) * rule.every
        chunks = held_out.read_ids(
            [str(source)],
            run.text_field,
            tokenizer.encode,
            tokenizer.separator,
            min(rule.tokens - run.first_token, enough),
        )
        ids = np.concatenate([np.empty(0, np.int64), *chunks])
        windows = held_out.held_out_windows(ids, rule, run.first_token)
        held_out_parts[source] = held_out.split_documents(windows, tokenizer.separator)
    return held_out_parts, others
