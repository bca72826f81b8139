"""What an evaluation needs before the first token is read: the model, its original, the contexts and the text."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import CheckpointError, CtxextendError, ResizeError
from ctxextend.evaluation.readers import (
    CAUSAL,
    ENCODER,
    MASKED,
    Reader,
    check_known,
    encode,
    open_reader,
    separator,
    share_equal_tensors,
)
from ctxextend.evaluation.windows import Text, cut_text, ladder
from ctxextend.recipe import LEAST_LENGTH, MEASURES, CheckpointRef, Evaluate
from ctxextend.text_data import check_paths, read_documents

__all__ = ["Prepared", "check_same_tokens", "fitting_measures", "prepare", "prepare_readers"]

# What each kind of model can be measured by.
FITTING = {
    CAUSAL: ("position", "context", "passkey"),
    MASKED: ("position", "context", "passkey"),
    ENCODER: ("passkey", "retrieval"),
}
WORDS = {CAUSAL: "a causal language model", MASKED: "a masked language model", ENCODER: "an encoder without a head"}

# Characters of a file that are read for each token that is wanted: words of few languages are longer.
CHARACTERS_A_TOKEN = 100
# Those that are cut into tokens at first, which most often is enough: a tokenizer needs some 160 bytes for each.
CHARACTERS_AT_FIRST = 8

# Tokens by which two tokenizers are compared.
COMPARED = 512


@dataclass(frozen=True)
class Prepared:
    """What is measured, on what.

    Attributes:
        model: What is measured.
        original: What it was made of; None where that is not known.
        measures: The measures to take, in the order of `MEASURES`.
        lengths: The contexts, the shortest first.
        text: What is read, in windows as long as the longest context.
        warnings: What should not be missed.
        notes: What should be known.
    """

    model: Reader
    original: Reader | None
    measures: tuple[str, ...]
    lengths: tuple[int, ...]
    text: Text
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def prepare(ref: CheckpointRef, settings: Evaluate) -> Prepared:
    """Load the models and cut the text.

    Raises:
        CtxextendError: As `evaluate`.
    """
    check_paths(settings.data)
    model = open_reader(ref, settings.precision)
    fitting_measures(model, settings)
    original, warnings, notes = _original(model, settings)
    found = prepare_readers(model, original, settings)
    if original is not None:
        check_same_tokens(model, original, found.text.windows[0])
        share_equal_tensors(model, original)
    return replace(found, warnings=(*warnings, *found.warnings), notes=(*model.notes, *notes))


def prepare_readers(
    model: Reader,
    original: Reader | None,
    settings: Evaluate,
    documents: Iterable[NDArray[np.int64]] | None = None,
    least: int = 1,
) -> Prepared:
    """Choose what is measured of models that are loaded, and cut the text.

    Args:
        model: What is measured.
        original: What it was made of; None where that is not known.
        settings: How.
        documents: Ids of the text to take in place of that which the settings name, each of shape (tokens of it,).
        least: Windows needed.

    Raises:
        DataError: The text cannot be read, or is shorter than the windows needed.
        ResizeError: A length that the model does not read, or a measure that does not fit it.
    """
    measures, lengths = fitting_measures(model, settings), _lengths(model, original, settings)
    size = max(lengths) - model.special
    wanted = max(settings.tokens // max(lengths), 1)
    documents = _documents(model, settings) if documents is None else documents
    text = cut_text(documents, size, wanted, separator(model), one_each="retrieval" in measures, least=least)
    warnings = tuple(_cautions(text, size)) if {"position", "context"} & set(measures) else ()
    return Prepared(model, original, measures, lengths, text, warnings, ())


def fitting_measures(model: Reader, settings: Evaluate) -> tuple[str, ...]:
    """Return the measures to take of a model: those that were asked for, or all that fit it.

    Raises:
        ResizeError: One that was asked for does not fit.
    """
    fitting = FITTING[model.kind]
    for name in settings.measure:
        if name not in fitting:
            raise ResizeError(
                f"--measure {name} has no meaning for {model.name}, {WORDS[model.kind]}.", f"Use {', '.join(fitting)}."
            )
    return tuple(name for name in MEASURES if name in (settings.measure or fitting))


def _original(model: Reader, settings: Evaluate) -> tuple[Reader | None, tuple[str, ...], tuple[str, ...]]:
    """Return the original, with warnings and notes; None where none is named and none can be found.

    Raises:
        CtxextendError: One was named that cannot be opened.
        CheckpointError: It is another kind of model.
    """
    if settings.original is not None:
        found = open_reader(CheckpointRef(settings.original), settings.precision)
        _check_kind(model, found)
        return found, (), found.notes
    if settings.alone:
        return None, (), ()
    if model.made_of is None:
        return None, (), ("No recipe says what it was made of: name that with --original to compare with it.",)
    try:
        found = open_reader(model.made_of, settings.precision, model.tables_before)
        _check_kind(model, found)
    except CtxextendError as error:
        told = f"What it was made of cannot be compared with it: {error.message} Name it with --original."
        return None, (told,), ()
    return found, (), found.notes


def _check_kind(model: Reader, original: Reader) -> None:
    if original.kind != model.kind:
        raise CheckpointError(
            f"{original.name} is {WORDS[original.kind]}, and {model.name} is {WORDS[model.kind]}.",
            "Name what it was made of: --original.",
        )


def _lengths(model: Reader, original: Reader | None, settings: Evaluate) -> tuple[int, ...]:
    if model.max_len < LEAST_LENGTH:
        raise ResizeError(
            f"{model.name} reads {model.max_len} tokens, and the shortest context that is measured has {LEAST_LENGTH}.",
            f"Give it more first: ctxextend resize {model.name} --to {LEAST_LENGTH}",
        )
    longest = max(settings.length, default=model.max_len)
    if longest > model.max_len:
        raise ResizeError(
            f"--length {longest} is more than the {model.max_len} tokens that {model.name} reads.",
            f"Give it more first: ctxextend resize {model.name} --to {longest}",
        )
    return tuple(sorted(set(settings.length))) or ladder(longest, original.max_len if original else None)


def _documents(model: Reader, settings: Evaluate) -> Iterator[NDArray[np.int64]]:
    wanted = max(settings.tokens, model.max_len)
    for text in read_documents(settings.data, settings.text_field, CHARACTERS_A_TOKEN * wanted):
        ids = _beginning(model, text, wanted)
        check_known(model, ids)
        yield ids


def _beginning(reader: Reader, text: str, wanted: int) -> NDArray[np.int64]:
    """Return the first tokens of a text, as many as are wanted or all, without cutting much more of it into tokens."""
    room = CHARACTERS_AT_FIRST * wanted
    ids = encode(reader, text[:room])
    while len(ids) <= wanted and room < len(text):
        room *= 4
        ids = encode(reader, text[:room])
    return ids[:wanted]  # a word that was cut off lies behind them


def check_same_tokens(model: Reader, original: Reader, window: NDArray[np.int64]) -> None:
    """Refuse to compare two models token by token where their tokens are not the same.

    Args:
        model: What is compared.
        original: What it is compared with.
        window: Ids of the model's tokens, shape (tokens,), whose text both cut.

    Raises:
        CheckpointError: The two tokenizers cut a text differently, or put other special tokens around it.
    """
    text = model.tokenizer.decode(window[:COMPARED])
    frames = [(reader.prefix, reader.suffix) for reader in (model, original)]
    if frames[0] != frames[1] or not np.array_equal(encode(model, text), encode(original, text)):
        raise CheckpointError(
            f"The tokenizers of {model.name} and {original.name} cut the text into different tokens.",
            "Name what it was made of: --original.",
        )


def _cautions(text: Text, size: int) -> Iterator[str]:
    """Yield what should be known of losses of such windows."""
    if text.across_documents:
        yield (
            f"Few documents are as long as a window of {size:,} tokens, so windows run over their ends: what stands "
            "before an end is of little use behind it."
        )
