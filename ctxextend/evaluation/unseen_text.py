"""Read the text of an evaluation without what the models were trained on."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ctxextend import held_out
from ctxextend.evaluation.eval_model import ModelOrFiles
from ctxextend.evaluation.text_tokenizer import TextTokenizer
from ctxextend.held_out import HeldOut, Ids
from ctxextend.recipe import Evaluate
from ctxextend.text_data import TextSource, check_paths, read_documents

CHARACTERS_PER_TOKEN = 100  # read of each document; tokens are rarely longer


def read_unseen(
    models: Sequence[ModelOrFiles], settings: Evaluate, minimum: int
) -> tuple[Iterator[Ids], list[str]]:
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
    unseen, seen = _find_trained_on(models, settings, sources, max(maximum, minimum))
    tokens = sum(len(document) for documents in unseen.values() for document in documents)
    if tokens < minimum and len(unseen) == len(sources):
        seen += unseen
        unseen.clear()

    def read() -> Iterator[Ids]:
        for source in sources:
            if source in unseen:
                yield from unseen[source]
            else:
                yield from _read_source(source, settings.text_field, tokenizer, maximum)

    names = [model.name for model in models if model.trainings]
    name = f"One of {', '.join(names)}" if len(names) > 1 else "".join(names)
    all_seen = f"{held_out.NO_HELD_OUT} text with --data."
    only_held_out = f": only the {tokens:,} held-out tokens are used."
    warnings = [
        *held_out.trained_on_warnings(name, seen, all_seen),
        *held_out.trained_on_warnings(name, unseen, only_held_out),
    ]
    return read(), warnings


def _find_trained_on(
    models: Sequence[ModelOrFiles],
    settings: Evaluate,
    sources: Sequence[TextSource],
    maximum: int,
) -> tuple[dict[TextSource, list[Ids]], list[TextSource]]:
    """Return the held-out documents of files that were trained on, and files without any."""
    unseen = dict[TextSource, list[Ids]]()
    seen = list[TextSource]()
    trained_on = held_out.trained_texts(run for model in models for run in model.trainings)
    if not trained_on:
        return unseen, seen
    tokenizer = models[0].tokenizer
    for source in sources:
        runs = list(trained_on.get(held_out.text_key(held_out.fingerprint(source)), ()))
        if not runs:
            continue
        rule, first, text_field = runs[0]
        if rule is None or len(runs) > 1 or text_field != settings.text_field:
            seen.append(source)
        else:
            unseen[source] = _read_held_out(source, text_field, tokenizer, rule, first, maximum)
    return unseen, seen


def _read_held_out(
    source: TextSource,
    text_field: str,
    tokenizer: TextTokenizer,
    rule: HeldOut,
    first: int,
    maximum: int,
) -> list[Ids]:
    """Return the held-out documents of a file, about `maximum` tokens.

    `first` is the file's first token in the text that the rule applies to.
    """
    count = min(rule.tokens - first, (2 * maximum + rule.window) * rule.every)
    separator = tokenizer.separator
    read = held_out.read_ids([str(source)], text_field, tokenizer.encode, separator, count)
    ids = np.concatenate([np.empty(0, np.int64), *read])
    return held_out.split_documents(held_out.held_out_windows(ids, rule, first), separator)


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
