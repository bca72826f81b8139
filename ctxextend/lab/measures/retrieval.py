"""Document retrieval with queries cut from text beyond the base's context length."""

from collections.abc import Iterator

from ctxextend.errors import DataError
from ctxextend.lab.documents import MRR, RankedDocuments
from ctxextend.lab.eval_model import ENCODER
from ctxextend.lab.measures import measure
from ctxextend.lab.reader import Reader
from ctxextend.lab.scores import Score
from ctxextend.lab.texts import Texts

QUERY_TOKENS = 40  # or the context length of the base, if shorter
# Where queries start, in sixths between the base's context length and the end of the document.
START_SIXTHS = (2, 3, 4, 5)
SKIPPED = "Retrieval was skipped: "


@measure("Document retrieval", ENCODER)
def retrieval(reader: Reader, texts: Texts) -> Iterator[Score]:
    """Yield the scores of a model, or of its base in chunks.

    Raises:
        DataError: A base is missing, its context is too long, or there are too few documents.
    """
    base = texts.base
    if base is None:
        message = (
            f"{SKIPPED}it needs a base, because queries are cut from text beyond its context "
            "length."
        )
        raise DataError(message, "Pass it with --base.")
    special = base.model.tokenizer.num_special
    size = texts.length - special
    query_tokens = min(QUERY_TOKENS, base.model.max_text)
    last = size - query_tokens
    if last < base.max_len:
        needed = base.max_len + query_tokens + special
        message = (
            f"{SKIPPED}queries from beyond {base.max_len:,} tokens need a length of at least "
            f"{needed:,}."
        )
        raise DataError(message, f"Pass --length {needed} or more.")
    documents = [document[:size] for document in texts.documents if len(document) >= size]
    if len(documents) < 2:
        message = (
            f"{SKIPPED}it needs two documents of at least {size:,} tokens, but {len(documents)} of "
            f"{len(texts.documents):,} documents are that long."
        )
        raise DataError(message, "Pass longer documents with --data.")
    starts = query_starts(base.max_len, texts.length, last)
    queries = []
    relevant = []
    for index, document in enumerate(documents):
        for start in starts:
            queries.append(document[start : start + query_tokens])
            relevant.append({index: 1})
    ranked = RankedDocuments(
        measure="retrieval",
        documents=documents,
        queries=queries,
        relevant=relevant,
        ranked_by=MRR,
        sample=len(starts),
    )
    yield from ranked.scores(reader, texts)


def query_starts(first: int, stop: int, last: int) -> tuple[int, ...]:
    """Return where queries start between two tokens of a document, at most at `last`.

    If `last` is below the first token, they start nowhere.
    """
    starts = [first + (stop - first) * sixth // 6 for sixth in START_SIXTHS]
    if starts[-1] > last:
        if last < first:
            return ()
        # Evenly spaced up to the last start that leaves room for a query.
        count = len(START_SIXTHS)
        starts = [first + (last - first) * i // (count - 1) for i in range(count)]
    return tuple(dict.fromkeys(starts))
