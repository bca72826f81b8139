"""Phrases on results that screens, verdicts, pages and figures share."""

from collections.abc import Mapping

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.comparison.metrics import METRICS
from ctxextend.lab.evaluation_result import (
    CHUNKS,
    MODEL,
    SAME_TEXT,
    TRUNCATED,
    DocumentScores,
    TokensRead,
    mode_of_same_text,
)


def metric_column(comparison: Comparison) -> str:
    """Return the name of the metric in tables."""
    return METRICS[comparison.metric].column


def metric_phrase(comparison: Comparison) -> str:
    """Return the name of the metric in sentences."""
    return METRICS[comparison.metric].phrase


# How documents are read: by the base, and in the last one by the model.
READING_NAMES = {
    TRUNCATED: "first {limit:,} tokens",
    SAME_TEXT: "chunks of the same {limit:,} tokens",
    CHUNKS: "chunks of the whole document",
    MODEL: "model, up to {limit:,} tokens",
}
SHORT_READING_NAMES = {  # for the first column of a table
    **READING_NAMES,
    SAME_TEXT: "chunks, same {limit:,} tokens",
    CHUNKS: "chunks, whole document",
}
TOKENS_COLUMN = "median tokens"


def reading_name(mode: str, read: TokensRead) -> str:
    """Return how documents are read in a mode, in a sentence."""
    return READING_NAMES[mode].format(limit=read.limit or 0)


def short_reading_name(mode: str, read: TokensRead) -> str:
    """Return how documents are read in a mode, in a table."""
    return SHORT_READING_NAMES[mode].format(limit=read.limit or 0)


def tokens_of_document(read: TokensRead) -> str:
    """Return how many tokens of a document are read, for a cell of a wide table."""
    if read.limit is None:
        return f"all, {read.median:,}"
    return f"{read.median:,}"


def tokens_note(tokens_read: Mapping[str, TokensRead]) -> str:
    """Return which rows are of the base, and that both kinds of chunks are one if they are.

    Empty without a base.
    """
    if CHUNKS not in tokens_read:
        return ""
    note = "All rows but the last are of the base; chunks are averaged, each by its tokens."
    if SAME_TEXT not in tokens_read:
        note += " No document is cut: the model reads the same text as the chunks."
    return note


def modes_note(tokens_read: Mapping[str, TokensRead]) -> str:
    """Return how many tokens of each document are read in each mode, in a sentence."""
    modes = []
    for mode, read in tokens_read.items():
        modes.append(f"{reading_name(mode, read)} (median {read.median:,})")
    note = f"Read of each document: {'; '.join(modes)}."
    if CHUNKS in tokens_read and SAME_TEXT not in tokens_read:
        note += " No document is cut: the model reads the same text as the chunks."
    return note


def chunks_name(tokens_read: Mapping[str, TokensRead], mode: str) -> str:
    """Return what the base reads in chunks, with the tokens of it, in a sentence."""
    read = tokens_read[mode]
    name = reading_name(mode, read)
    if mode != CHUNKS:
        return name
    if mode == mode_of_same_text(tokens_read):
        return f"{name} (the same text)"
    return f"{name} (median {read.median:,} tokens)"


def chunk_columns(measured: DocumentScores) -> dict[str, str]:
    """Return the columns of differences to the base in chunks, by mode; empty without a base."""
    if SAME_TEXT in measured.differences:
        return {SAME_TEXT: "vs. same text", CHUNKS: "vs. whole text"}
    if CHUNKS in measured.differences:
        return {CHUNKS: "vs. chunks"}
    return {}


def chunks_note(measured: DocumentScores) -> str:
    """Return what the columns of differences to the base in chunks are; empty without a base."""
    columns = chunk_columns(measured)
    if not columns:
        return ""
    text = "the text that the model reads"
    if CHUNKS in columns and SAME_TEXT in columns:
        text += ", or of the whole document"
    names = ", ".join(columns.values())
    return f"{names}: minus the base in chunks of {text}; above 0 is better."


def short_inputs_cost(comparison: Comparison) -> str:
    """Return what the cost on short inputs is."""
    if comparison.is_loss:
        return f"loss minus the base's, both at {comparison.max_len_before:,} tokens"
    other = "the base's" if comparison.source else "those of the first checkpoint"
    return f"1 - cosine of embeddings of {comparison.max_len_before:,} tokens to {other}"
