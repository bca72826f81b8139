"""Search in a corpus with judged queries, as in BEIR."""

from collections.abc import Iterator

import numpy as np

from ctxextend.lab.documents import NDCG_AT_10, RankedDocuments
from ctxextend.lab.embedding import read_prompts
from ctxextend.lab.eval_model import ENCODER, check_vocabulary
from ctxextend.lab.measures import measure
from ctxextend.lab.reader import Reader
from ctxextend.lab.scores import Score
from ctxextend.lab.texts import Texts


@measure("Search", ENCODER)
def search(reader: Reader, texts: Texts) -> Iterator[Score]:
    """Yield the scores of a model, or of its base in chunks.

    Texts get the prompts that the model's folder states.

    Raises:
        CheckpointError: The tokenizer has tokens that the model does not have.
    """
    search_set = texts.search_set
    if search_set is None:
        return
    prompts = read_prompts(reader.model.root)
    if prompts not in texts.memory:
        encode = reader.model.tokenizer.encode_all
        of_query, of_document = prompts
        queries = encode([of_query + text for text in search_set.queries])
        documents = encode([of_document + text for text in search_set.documents])
        check_vocabulary(reader.model, np.concatenate([*documents, *queries]))
        texts.memory[prompts] = queries, documents
    queries, documents = texts.memory[prompts]
    # The base, which has the shorter context, embeds queries too.
    most = (texts.base or reader).model.max_text
    ranked = RankedDocuments(
        measure="search",
        documents=documents,
        queries=[query[:most] for query in queries],
        relevant=search_set.relevant,
        ranked_by=NDCG_AT_10,
    )
    yield from ranked.scores(reader, texts)
