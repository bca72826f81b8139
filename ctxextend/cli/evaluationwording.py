"""What was measured of a context length, in words and figures."""

from ctxextend.evaluation.evaluation_result import Evaluation, Passkey, Retrieval
from ctxextend.report.numbers import Figures, side

__all__ = ["Figures", "passkey_words", "run_facts", "scored", "side", "way_words"]

PASSKEY = {
    "loss rank": "found where, of all numbers that were tried, the right one is the least surprising to the model",
    "retrieval": "found where the query for a number comes nearest to the text that holds it",
}
WAYS = {
    "truncated": "the start of each document, read by the original",
    "chunks": "all of it in pieces, read by the original, and their vectors averaged",
    "model": "all of it at once",
}


def scored(evaluation: Evaluation) -> str:
    """Return what losses are of."""
    return "masked tokens" if evaluation.kind == "masked" else "tokens"


def run_facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return what was read and how, each with its label."""
    reads = f"{evaluation.max_len} tokens at once"
    if evaluation.original is not None:
        reads += f"; the original, {evaluation.original}, reads {evaluation.original_max_len}"
    documents = f"{evaluation.documents:,} document{'s' * (evaluation.documents != 1)}"
    text = f"{documents}, {evaluation.tokens:,} tokens of {'it' if evaluation.documents == 1 else 'them'} used"
    if evaluation.across_documents:
        text += "; windows run over the ends of documents"
    return [("reads", reads), ("text", text), ("run", f"in {evaluation.precision}, seed {evaluation.seed}")]


def passkey_words(passkey: Passkey, original: int | None) -> list[str]:
    """Say how a number was asked for, and what there is to compare with."""
    how = f"{passkey.how}: {PASSKEY.get(passkey.how, 'a number in a long text')}."
    trials = f"{passkey.trials} trial{'s' * (passkey.trials != 1)} a cell; guessing finds {100 * passkey.chance:.3g} %."
    is_longer = original is not None and any(length > original for length in passkey.lengths)
    return [how, trials, *["* longer than the original reads."] * is_longer]


def way_words(retrieval: Retrieval) -> list[tuple[str, str]]:
    """Return how documents were read, each way with its name."""
    return [(name, WAYS.get(name, name)) for name in retrieval.ways]
