"""Search in a corpus with judged queries."""

from typing import Any, ClassVar

import numpy as np

from ctxextend.lab.embedding import Embedder, read_prompts
from ctxextend.lab.eval_model import check_same_tokens, check_vocabulary
from ctxextend.lab.evaluation_result import (
    TRUNCATED,
    Estimate,
    SearchResult,
)
from ctxextend.lab.retrieval import NDCG_AT_10, DocumentTask
from ctxextend.lab.search_set import SearchSet


class SearchTask(DocumentTask):
    """A search set as tokens, and its scores.

    `DocumentTask` ranks the documents, keeps the scores of queries as `found`, by mode and name,
    and returns the `mean` of a score.
    """

    ranked_by: ClassVar = NDCG_AT_10

    def report(self) -> dict[str, Any]:
        """Return the field of `Evaluation` that this task measures."""
        scores = dict[str, dict[str, Estimate]]()
        changes = {}
        for mode, found in self.found.items():
            scores[mode] = {name: self.mean(name, mode) for name in found}
            if self.base is not None and mode != TRUNCATED:
                changes[mode] = self.mean(NDCG_AT_10, mode, minus=TRUNCATED)
        longer_than_base = None
        if self.base is not None:
            longer_than_base = self._longer_than(self.base.model.max_text)
        search = SearchResult(
            length=self.length,
            documents=len(self.documents),
            queries=len(self.queries),
            longer_than_model=self._longer_than(self.read_size),
            longer_than_base=longer_than_base,
            pooling=self.model.pooling,
            scores=scores,
            tokens_read=self.tokens_read,
            changes=changes,
            differences=self.differences,
        )
        return {"search": search}

    def _longer_than(self, size: int) -> int:
        return sum(len(document) > size for document in self.documents)


def plan_search(
    model: Embedder, base: Embedder | None, texts: SearchSet, length: int
) -> SearchTask:
    """Tokenize a search set for documents of at most `length` tokens.

    Texts get the prompts that the model's folder states.

    Raises:
        CheckpointError: The tokenizer is not that of the model or of its base.
    """
    eval_model = model.model
    # The base, which has the shorter context, embeds queries too.
    query_model = eval_model if base is None else base.model
    encode = eval_model.tokenizer.encode
    query_prompt, document_prompt = read_prompts(eval_model.root)
    documents = tuple(encode(document_prompt + text) for text in texts.documents)
    queries = tuple(encode(query_prompt + text)[: query_model.max_text] for text in texts.queries)
    check_vocabulary(eval_model, np.concatenate([*documents, *queries]))
    check_same_tokens(eval_model, query_model, documents[0])
    return SearchTask(
        model=model,
        base=base,
        length=length,
        documents=documents,
        queries=queries,
        relevant=texts.relevant,
    )
