"""A task of MTEB: passages of Python's documentation, after 480 words of a page, and the pages."""

from pydoc_data.topics import topics
from typing import Any

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval

WORDS = {title: text.split() for title, text in topics.items() if len(text.split()) > 600}


def records(first: int, last: int) -> Any:
    """Return words of each page as a data set."""
    rows = [{"id": title, "text": " ".join(words[first:last])} for title, words in WORDS.items()]
    return Dataset.from_list(rows)


class MyTask(AbsTaskRetrieval):  # type: ignore[misc]
    """Searches the page of a passage."""

    metadata = mteb.TaskMetadata(
        name="PythonPages",
        description="Passages of Python's documentation, and the pages that they are from.",
        dataset={"path": "local", "revision": "1"},
        type="Retrieval",
        category="t2t",
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def load_data(self, **_: Any) -> None:
        """Make the data sets, in memory."""
        split = {
            "corpus": records(0, 600),
            "queries": records(480, 500),
            "relevant_docs": {title: {title: 1} for title in WORDS},
            "top_ranked": None,
        }
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True
