"""Judge methods by rows that a model has learned: held-out rows.

    python -m benchmarks.held_out_rows MODEL TEXT... --hold-out N [--to M] [--method METHOD ...]
    [--tokens T]

The table of MODEL is cut to its first N rows, and extended back to M rows by each method: by
default to all of its rows, by all methods. The same texts, which fit the whole table, are read
with its own rows, the reference rows, and with the new ones; so the right answer is known.

Language models are ranked by the loss of tokens at positions from N on, encoders by the cosines of
embeddings to those with the reference rows. Encoders also find documents by queries that are cut
from beyond N, and embedded with the reference rows. Short inputs are the first N tokens of each
text, read by themselves. Each text is a piece of a document with more than N tokens.
"""

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend import resize
from ctxextend.errors import ResizeError
from ctxextend.held_out import Ids
from ctxextend.lab.documents import MRR, score_rankings
from ctxextend.lab.embedding import Embedder, cosines, open_embedder
from ctxextend.lab.eval_model import ENCODER, MASKED, EvalModel, open_eval_model, open_files
from ctxextend.lab.losses import choose_masked
from ctxextend.lab.measures.retrieval import QUERY_TOKENS, query_starts
from ctxextend.lab.numbers import difference_text, score_text
from ctxextend.lab.scorer import ScoredWindow, open_scorer
from ctxextend.lab.scores import NATS, ONE_PASS, SHARE, Score
from ctxextend.lab.statistics import MIN_SAMPLES
from ctxextend.lab.text_tokenizer import TextTokenizer
from ctxextend.lab.texts import SEARCH_FACTOR
from ctxextend.lab.unseen_text import read_unseen
from ctxextend.models.devices import torch_threads
from ctxextend.opening.opened_model import open_model
from ctxextend.settings import CheckpointRef, Evaluate
from ctxextend.tables.method_facts import DEFAULT_METHOD
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rotary_methods import ROTARY_METHOD_NAMES

__all__ = [
    "BEYOND",
    "SHORT",
    "HeldOutRows",
    "Texts",
    "measure_methods",
    "read_scores",
    "read_texts",
]

# Names of scores: at held-out positions, and of short inputs. Encoders also have `RECALL_AT_1` and
# `MRR`, of queries.
BEYOND = "beyond"
SHORT = "short"
RECALL_AT_1 = "recall@1"
COSINE_DECIMALS = 6  # embeddings are in float32
REFERENCE = "reference rows"
# But the default one, which chooses one of the others.
EVERY_METHOD = [name for name in (*METHODS, *ROTARY_METHOD_NAMES) if name != DEFAULT_METHOD]

ArrayPerText = list[NDArray[Any]]
Scores = dict[str, Score]  # by name, of losses or of cosines


@dataclass(frozen=True)
class Texts:
    """Texts with tokens at held-out positions.

    A model reads special tokens around a text, here one on each side. With 8 rows in the cut
    table, of a text of 11 tokens::

        positions    0   1   2   3   4   5   6   7   8   9  10  11  12
        whole text  [B]  0   1   2   3   4   5   6   7   8   9  10  [A]    first_beyond is 7
        short text  [B]  0   1   2   3   4   5  [A]                        short_size is 6
    """

    ids: tuple[Ids, ...]  # without special tokens
    hold_out: int  # the first held-out row, a position
    length: int  # of a text at most, special tokens included
    tokenizer: TextTokenizer

    @property
    def first_beyond(self) -> int:
        """The index of the first token of a text at a held-out position."""
        return self.hold_out - len(self.tokenizer.before)

    @property
    def short_size(self) -> int:
        """The number of tokens of a short text."""
        return self.hold_out - self.tokenizer.num_special

    @property
    def short(self) -> list[Ids]:
        """The first tokens of each text, as many as the cut table can read."""
        return [text[: self.short_size] for text in self.ids]

    def scores(self, method: str, unit: str, values: Mapping[str, ArrayPerText]) -> Scores:
        """Return the scores of a method from its values of each text."""
        counts = [len(text) + self.tokenizer.num_special for text in self.ids]
        score = partial(
            Score,
            model=method,
            measure="held-out rows",
            reading=ONE_PASS,
            length=self.length,
            tokens=statistics.median_low(counts),
            unit=unit,
        )
        return {name: score(name=name, values=of_texts) for name, of_texts in values.items()}


def read_texts(source: str, judges: Evaluate, hold_out: int, length: int) -> Texts:
    """Cut documents into texts with tokens at held-out positions; no model is loaded.

    The first text of each document is preferred to the others.

    Args:
        source: The checkpoint.
        judges: Which text to read, and how much.
        hold_out: The first held-out row.
        length: Maximum tokens of a text, special tokens included.
    """
    files = open_files(open_model(CheckpointRef(source)))
    tokenizer = files.tokenizer
    max_text = length - tokenizer.num_special
    min_text = hold_out - len(tokenizer.before) + 1
    enough = SEARCH_FACTOR * max(judges.tokens, MIN_SAMPLES * max_text)
    by_number = defaultdict[int, list[Ids]](list)  # number of a text inside its document
    total = 0
    documents, _ = read_unseen([files], judges, MIN_SAMPLES * min_text)
    for ids in documents:
        for number, start in enumerate(range(0, len(ids), max_text)):
            text = ids[start : start + max_text]
            if len(text) >= min_text:
                by_number[number].append(text)
                total += len(text)
        if total >= enough:
            break
    found = [text for number in sorted(by_number) for text in by_number[number]]
    if len(found) < MIN_SAMPLES:
        raise SystemExit(f"{MIN_SAMPLES} texts of more than {hold_out} tokens are needed.")
    chosen = list[Ids]()
    tokens = 0
    for text in found:
        tokens += len(text)
        if tokens > judges.tokens and len(chosen) >= MIN_SAMPLES:
            break
        chosen.append(text)
    return Texts(ids=tuple(chosen), hold_out=hold_out, length=length, tokenizer=tokenizer)


# Language models


def read_losses(method: str, model: EvalModel, texts: Texts, seed: int) -> Scores:
    """Return the losses of tokens at held-out positions, and those of short texts.

    A masked model has a share of the tokens of each part as targets, the same for all rows.
    """
    is_masked = model.kind == MASKED
    first = 1  # nothing precedes the first token of the text
    if is_masked or texts.tokenizer.before:
        first = 0
    short = list[Ids]()
    beyond = list[Ids]()
    for number, text in enumerate(texts.ids):
        near = np.arange(first, texts.short_size)
        far = np.arange(texts.first_beyond, len(text))
        if is_masked:
            generator = np.random.default_rng([seed, number])
            near = choose_masked(near, generator)
            far = choose_masked(far, generator)
        short.append(near)
        beyond.append(far)
    targets = [np.concatenate(both) for both in zip(short, beyond, strict=True)]
    of_whole = score_targets(model, texts.ids, targets)
    losses = zip(of_whole, short, strict=True)
    values = {
        BEYOND: [of_text[len(near) :] for of_text, near in losses],
        SHORT: score_targets(model, texts.short, short),
    }
    return texts.scores(method, NATS, values)


def score_targets(
    model: EvalModel, texts: Sequence[Ids], targets: Sequence[Ids]
) -> list[NDArray[np.float64]]:
    """Return the losses of tokens of each text, which is read in one window."""
    tokenizer = model.tokenizer
    before = len(tokenizer.before)
    windows = list[ScoredWindow]()
    for text, indices in zip(texts, targets, strict=True):
        inputs = text.copy()
        outputs = indices + before - 1  # the output before a token predicts it
        if model.kind == MASKED:
            inputs[indices] = tokenizer.tokenizer.mask_token_id
            outputs = indices + before
        windows.append(
            ScoredWindow(
                input_ids=tokenizer.add_special_tokens(inputs),
                outputs=outputs,
                labels=text[indices],
            )
        )
    return open_scorer(model).losses(windows)


# Encoders


class Embeddings(NamedTuple):
    """The embeddings of texts and of short texts, (texts, d), of length 1."""

    whole: NDArray[np.float32]
    short: NDArray[np.float32]


def embed(embedder: Embedder, texts: Texts) -> Embeddings:
    """Embed each text, and its first tokens by themselves."""
    return Embeddings(whole=embedder.embed(texts.ids), short=embedder.embed(texts.short))


def embed_queries(embedder: Embedder, texts: Texts) -> ArrayPerText:
    """Embed queries, (queries, d) per text, which are cut from its tokens at held-out positions."""
    size = min(QUERY_TOKENS, texts.short_size)
    embedded = list[NDArray[Any]]()
    for text in texts.ids:
        starts = query_starts(first=texts.first_beyond, stop=len(text), last=len(text) - size)
        queries = [text[start : start + size] for start in starts]
        if queries:
            embedded.append(embedder.embed(queries))
        else:
            embedded.append(np.empty((0, 0)))
    return embedded


def score_embeddings(
    own: Embeddings, reference: Embeddings, queries: ArrayPerText
) -> dict[str, ArrayPerText]:
    """Return the cosines of texts to the reference embeddings, and what queries find."""
    values = {
        BEYOND: cosines_of_texts(own.whole, reference.whole),
        SHORT: cosines_of_texts(own.short, reference.short),
    }
    counts = [len(embedded) for embedded in queries]
    asked = [embedded for embedded in queries if len(embedded)]
    if not asked:
        return values
    relevant = [{text: 1} for text in np.repeat(np.arange(len(counts)), counts).tolist()]
    found = score_rankings(cosines(np.concatenate(asked), own.whole), relevant)
    for name in (RECALL_AT_1, MRR):
        values[name] = np.split(found[name], np.cumsum(counts)[:-1])
    return values


def cosines_of_texts(
    embeddings: NDArray[np.float32], references: NDArray[np.float32]
) -> ArrayPerText:
    """Return the cosine of each text to its reference embedding, each of shape (1,)."""
    products = np.einsum("td,td->t", embeddings, references, dtype=np.float64)
    return [*np.round(products, COSINE_DECIMALS)[:, None]]


# Methods


class HeldOutRows(NamedTuple):
    """The scores of the reference rows, and of each method, best first."""

    reference: Scores
    methods: dict[str, Scores]
    auto: str  # the method that `auto` takes, with its settings; empty if it is not compared


def read_scores(method: str, folder: str | Path, texts: Texts, seed: int = 0) -> Scores:
    """Return the scores of a language model."""
    model = open_eval_model(CheckpointRef(str(folder)), "fp32")
    with torch_threads(model.model, None):
        return read_losses(method, model, texts, seed)


def measure_methods(
    source: str,
    hold_out: int,
    to: int | None,
    methods: Sequence[str],
    judges: Evaluate,
) -> HeldOutRows:
    """Cut the table of a model, extend it back by each method, and read the same texts with all.

    Args:
        source: The checkpoint.
        hold_out: The first held-out row.
        to: The length to extend the cut table to, at most that of the model, which is the default.
        methods: As in `evaluate`; those of ``all`` that do not apply are left out.
        judges: Which text to read, and how much.
    """
    length = open_files(open_model(CheckpointRef(source))).max_len
    to = to or length
    texts = read_texts(source, judges, hold_out, to)
    names = dict[str, None]()
    for method in methods or ["all"]:
        if method == "all":
            names |= dict.fromkeys(EVERY_METHOD)
        else:
            names[method] = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = source
        if to < length:
            whole = str(resize(source, to, output=folder / "reference").output)
        model = open_eval_model(CheckpointRef(whole), "fp32")
        is_encoder = model.kind == ENCODER
        with torch_threads(model.model, None):
            if is_encoder:
                embedder = open_embedder(model)
                embeddings = embed(embedder, texts)
                queries = embed_queries(embedder, texts)
                values = score_embeddings(embeddings, embeddings, queries)
                reference = texts.scores(REFERENCE, SHARE, values)
            else:
                reference = read_losses(REFERENCE, model, texts, judges.seed)

        cut = resize(source, hold_out, output=folder / "cut").output
        extended = folder / "extended"
        of_methods = list[Scores]()
        auto = ""
        for method in names:
            try:
                result = resize(cut, to, method, output=extended, force=True)
            except ResizeError:
                if method in methods:
                    raise
                continue
            if method == DEFAULT_METHOD:
                auto = result.plan.main_choice.text
            if is_encoder:
                model = open_eval_model(CheckpointRef(str(extended)), "fp32")
                with torch_threads(model.model, None):
                    own = embed(open_embedder(model), texts)
                values = score_embeddings(own, embeddings, queries)
                of_methods.append(texts.scores(method, SHARE, values))
            else:
                of_methods.append(read_scores(method, extended, texts, judges.seed))
    of_methods.sort(key=lambda scores: scores[BEYOND].mean, reverse=is_encoder)
    ranked = {scores[BEYOND].model: scores for scores in of_methods}
    return HeldOutRows(reference=reference, methods=ranked, auto=auto)


def lines(found: HeldOutRows) -> Iterator[str]:
    """Yield the table of a measurement: the reference rows, then the methods, best first."""
    heads = ["method", "perplexity", "against the reference rows", "against the best"]
    names = [name for name in (BEYOND, MRR, RECALL_AT_1) if name in found.reference]
    if found.reference[BEYOND].unit == SHARE:
        heads[1:2] = ["cosine", *names[1:]]
    heads.append("short inputs, against the reference rows")
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{'---:|' * (len(heads) - 1)}"
    best = next(iter(found.methods.values()))
    for scores in (found.reference, *found.methods.values()):
        beyond = scores[BEYOND]
        cells = [beyond.model, *(score_text(scores[name]) for name in names)]
        differences = ["", "", ""]
        if scores is not found.reference:
            differences[0] = difference_text(beyond.minus(found.reference[BEYOND]))
            differences[2] = difference_text(scores[SHORT].minus(found.reference[SHORT]))
            if scores is not best:
                differences[1] = difference_text(beyond.minus(best[BEYOND]))
        yield f"| {' | '.join(cells + differences)} |"


def main() -> None:
    """Measure methods on a checkpoint and a text, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.held_out_rows",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model")
    parser.add_argument("text", nargs="+")
    parser.add_argument("--hold-out", type=int, required=True, metavar="N")
    parser.add_argument("--to", type=int, metavar="M")
    parser.add_argument("--method", action="append", default=[], metavar="METHOD")
    parser.add_argument("--tokens", type=int, default=65_536, metavar="T")
    arguments = parser.parse_args()
    judges = Evaluate(data=tuple(arguments.text), tokens=arguments.tokens)
    found = measure_methods(
        arguments.model, arguments.hold_out, arguments.to, arguments.method, judges
    )
    print("\n".join(lines(found)))


if __name__ == "__main__":
    main()
