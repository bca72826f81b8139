"""Documents that are ranked by the cosine of their embeddings to those of queries.

The base embeds the queries, so that an index of both stays comparable. It also embeds the
documents: their start, and as the mean embedding of consecutive chunks, of the tokens that the
model reads and of the whole document. The model embeds them in one pass.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctxextend.held_out import Ids
from ctxextend.lab.embedding import cosines, embed_chunks, mean_embeddings
from ctxextend.lab.reader import Reader
from ctxextend.lab.scores import CHUNKS, ONE_PASS, SAME_TEXT, START, Score
from ctxextend.lab.texts import Texts

# Names of scores.
NDCG_AT_10 = "nDCG@10"
MRR = "MRR"
RECALL_CUTOFFS = (1, 10, 100)


@dataclass(frozen=True)
class RankedDocuments:
    """Documents with queries; all texts are without special tokens."""

    measure: str
    documents: Sequence[Ids]
    queries: Sequence[Ids]
    # of each query: relevance above 0, by index of the document
    relevant: Sequence[Mapping[int, int]]
    ranked_by: str  # the name of the score that ranks models
    sample: int = 1  # consecutive queries that are one sample, because they are not independent

    def scores(self, reader: Reader, texts: Texts) -> Iterator[Score]:
        """Yield the scores of a model, or of the base for each way in which it reads documents."""
        special = reader.model.tokenizer.num_special
        size = texts.length - special  # that the model reads of a document
        counts = [len(document) for document in self.documents]
        asked = texts.base or reader
        if reader is asked:
            reader.memory[self.measure] = reader.embed(self.queries)
        queries: NDArray[np.float32] = asked.memory[self.measure]

        readings = dict[str, NDArray[np.float32]]()  # embeddings of the documents
        read = {START: reader.model.max_text, SAME_TEXT: size, ONE_PASS: size}
        if reader is texts.base:
            chunks = embed_chunks(reader.embed, self.documents, reader.model.max_text)
            readings[START] = np.stack([vectors[0] for vectors in chunks])
            readings[CHUNKS] = mean_embeddings(chunks, self.documents, reader.model.max_text)
            if max(counts) > size:
                readings[SAME_TEXT] = self._same_text(reader, chunks, size)
        else:
            readings[ONE_PASS] = reader.embed([document[:size] for document in self.documents])
        if reader.is_dry:
            return
        for reading, vectors in readings.items():
            by_name = score_rankings(cosines(queries, vectors), self.relevant)
            names = sorted(by_name, key=lambda name: name != self.ranked_by)
            limit = read.get(reading, max(counts))
            for name in names:
                yield Score(
                    model=reader.name,
                    measure=self.measure,
                    name=name,
                    reading=reading,
                    length=min(reader.max_len, texts.length),
                    values=tuple(by_name[name].reshape(-1, self.sample)),
                    tokens=statistics.median_low([min(count, limit) for count in counts]) + special,
                )

    def _same_text(
        self, reader: Reader, chunks: Sequence[NDArray[np.float32]], size: int
    ) -> NDArray[np.float32]:
        """Return the mean embeddings of the first tokens of each document, in chunks.

        Only chunks that are cut there are embedded again.
        """
        chunk = reader.model.max_text
        starts = [document[:size] for document in self.documents]
        cut = [
            index for index, start in enumerate(starts) if len(start) < len(self.documents[index])
        ]
        again = []
        if size % chunk:
            again = [starts[index][size // chunk * chunk :] for index in cut]
        ends = dict(zip(cut, reader.embed(again) if again else (), strict=False))
        of_starts = []
        for index, vectors in enumerate(chunks):
            own = vectors[: size // chunk] if index in cut else vectors
            if index in ends:
                own = np.concatenate([own, ends[index][None]])
            of_starts.append(own)
        return mean_embeddings(of_starts, starts, chunk)


def score_rankings(
    similar: Iterable[NDArray[np.float64]], relevant: Sequence[Mapping[int, int]]
) -> dict[str, NDArray[np.float64]]:
    """Return the scores of queries by name, each of shape (queries,).

    Of equally similar documents, the least relevant ranks first; so do irrelevant documents if a
    cosine is NaN: a model that embeds all documents alike finds none.

    Args:
        similar: Cosines of each query with all documents, shape (documents,).
        relevant: Relevance above 0 of documents, by index, for each query.

    Source: trec_eval's ndcg_cut_10 (gain: the relevance; discount: log2(rank + 1); ideal: the best
        order of all documents), recip_rank (without a cutoff) and recall_k, as in BEIR and MTEB.
    """
    scores = dict[str, list[float]]()
    for cosines_of_query, gains in zip(similar, relevant, strict=True):
        gain = np.zeros(len(cosines_of_query))
        gain[[*gains]] = [*gains.values()]
        without_cosine = np.where(gain > 0, -np.inf, np.inf)
        comparable = np.where(np.isnan(cosines_of_query), without_cosine, cosines_of_query)
        ranked = gain[np.lexsort((gain, -comparable))]
        ideal = np.sort(gain)[::-1]
        discount = 1 / np.log2(np.arange(2, len(gain[:10]) + 2))
        ndcg = float(ranked[:10] @ discount / (ideal[:10] @ discount))
        scores.setdefault(NDCG_AT_10, []).append(ndcg)
        scores.setdefault(MRR, []).append(1 / (1 + np.argmax(ranked > 0)))
        for cutoff in RECALL_CUTOFFS:
            if cutoff < len(gain):  # recall at the number of documents is always 1
                recall = np.count_nonzero(ranked[:cutoff]) / np.count_nonzero(gain)
                scores.setdefault(f"recall@{cutoff}", []).append(recall)
    return {name: np.array(values) for name, values in scores.items()}
