"""Numbers and documents that were found again as lines for a terminal."""

import math
from collections.abc import Iterator

from ctxextend.cli.chart import Pieces
from ctxextend.cli.evaluationwording import Figures, passkey_words, side, way_words
from ctxextend.cli.lines import Cell, Screen, labelled, table
from ctxextend.evaluation.evaluation_result import Evaluation, Passkey, Recall, Retrieval, binomial_tail

__all__ = ["passkey_lines", "retrieval_lines"]

# From the emptiest cell of a heat map to the fullest, and characters of a cell.
SHADES = {True: " \u2591\u2592\u2593\u2588", False: " .:+#"}
CELL = 3

# Finds that guessing makes as rarely as it comes two standard errors above its mean are no binomial_tail.
UNLIKELY = 0.0228


def passkey_lines(passkey: Passkey, evaluation: Evaluation, screen: Screen) -> Iterator[Pieces]:
    """Yield a heat map of what was found, by the text's length and by the depth of the number."""
    original = evaluation.original_max_len
    longer = [original is not None and length > original for length in passkey.lengths]
    header = [f"{length}{'*' * beyond}" for length, beyond in zip(passkey.lengths, longer, strict=True)]
    yield []
    yield from screen.says("passkey: numbers found again, in %, by tokens of the text and depth in it", "title")
    rows: list[list[Cell]] = [
        [(f"{100 * depth:>3.0f} %", ""), *(_cell(row[place], passkey, screen) for row in passkey.found)]
        for place, depth in enumerate(passkey.depths)
    ]
    yield from table(["depth", *header], rows, screen.width)
    for sentence in passkey_words(passkey, original):
        yield from screen.says(sentence)


def _cell(share: float | None, passkey: Passkey, screen: Screen) -> Cell:
    """Return a cell, pale where guessing might have found as many."""
    if share is None or not math.isfinite(share):
        return "-", "faint"
    shades = SHADES[screen.unicode]
    shade = shades[min(max(round(share * (len(shades) - 1)), 0), len(shades) - 1)]
    # Not by a standard error: of one trial in ten right by guessing, it makes a sure find.
    is_sure = binomial_tail(round(share * passkey.trials), passkey.trials, passkey.chance) < UNLIKELY
    return f"{shade * CELL} {100 * share:3.0f}", "right" if is_sure else "faint"


def retrieval_lines(retrieval: Retrieval, screen: Screen) -> Iterator[Pieces]:
    """Yield how many documents were found by each way to read them, and in words what that means."""
    figures = Figures(screen.unicode)
    yield []
    yield [("Retrieval", "title")]
    text = (
        f"{retrieval.queries:,} queries of {retrieval.query_tokens} tokens, from what the original could not read of "
        f"{retrieval.documents:,} documents of {retrieval.length} tokens; {retrieval.pooling} pooling"
    )
    yield from screen.says(text)
    compares = any(recall.change is not None for recall in retrieval.ways.values())
    header = ["read as", "recall@1, %", "MRR", *["change, points"] * compares]
    rows = [_way_row(name, recall, figures)[: len(header)] for name, recall in retrieval.ways.items()]
    yield from table(header, rows, screen.width)
    yield from labelled(way_words(retrieval), screen.width)
    for name, recall in retrieval.ways.items():
        if recall.change is not None:
            style = {-1: "wrong", 0: "", 1: "right"}[side(recall.change, recall.change_error)]
            yield from screen.says(f"{name}: {figures.found_more(recall)}.", style)


def _way_row(name: str, recall: Recall, figures: Figures) -> list[Cell]:
    cells = [
        figures.percent(recall.recall, recall.recall_error),
        figures.number(recall.reciprocal_rank, recall.reciprocal_rank_error),
        figures.percent(recall.change, recall.change_error, signed=True),
    ]
    return [(text, "") for text in (name, *cells)]
