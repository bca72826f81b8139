"""How alike an encoder and its base embed short texts, which both can read."""

from collections.abc import Iterator

import numpy as np

from ctxextend.lab.eval_model import ENCODER
from ctxextend.lab.measures import measure
from ctxextend.lab.reader import Reader
from ctxextend.lab.scores import ONE_PASS, Score
from ctxextend.lab.texts import Texts

SHORT_TEXTS = 64  # at most


@measure("Embeddings of short texts", ENCODER)
def similarity(reader: Reader, texts: Texts) -> Iterator[Score]:
    """Yield the cosines of a model's embeddings to those of its base."""
    base = texts.base
    if base is None or reader.max_len < base.max_len:
        return
    size = base.model.max_text
    documents = list(texts.windows[:SHORT_TEXTS])
    if not documents and texts.search_set is not None:
        documents = reader.model.tokenizer.encode_all(texts.search_set.documents[:SHORT_TEXTS])
    vectors = reader.embed([document[:size] for document in documents])
    if reader is base:
        reader.memory["similarity"] = vectors
    references = base.memory["similarity"]
    if vectors.shape != references.shape:
        return
    cosines = np.einsum("td,td->t", vectors, references, dtype=np.float64)
    yield Score(
        model=reader.name,
        measure="similarity",
        name="cosine",
        reading=ONE_PASS,
        length=base.max_len,
        values=list(np.round(cosines, 6)[:, None]),  # embeddings are in float32
        tokens=size,
    )
