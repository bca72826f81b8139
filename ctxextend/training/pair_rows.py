"""Files of pairs of texts for contrastive training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ctxextend.errors import DataError
from ctxextend.held_out import fingerprint
from ctxextend.lab.search_set import read_rows

COLUMNS = ("anchor", "positive", "negative")  # sentence-transformers' names; the last is optional
REQUIRED_COLUMNS = COLUMNS[:2]


class PairRows(NamedTuple):
    """The rows of files of pairs."""

    texts: list[str]  # different texts, in order of their first use
    pairs: list[list[int]]  # the indices in `texts` of each row's texts; all rows have as many
    files: list[dict[str, Any]]  # the fingerprint of each file


def read_pairs(paths: Sequence[str]) -> PairRows:
    """Return the rows of files.

    Raises:
        DataError: A file cannot be read, a field is empty, or a row has a negative and the first
            one has none, or the reverse.
    """
    number_of = dict[str, int]()  # by text
    pairs = list[list[int]]()
    for path in paths:
        for where, row in read_rows(Path(path), *REQUIRED_COLUMNS):
            texts = [row[name] for name in COLUMNS if name in row]
            filled = [text for text in texts if isinstance(text, str) and text.strip()]
            numbers = [number_of.setdefault(text, len(number_of)) for text in filled]
            pairs.append(numbers)
            if not len(numbers) == len(texts) == len(pairs[0]):
                message = f"{where} has an empty text, or more or fewer texts than the first line."
                hint = "Fill all fields, and give every line a negative, or none."
                raise DataError(message, hint)
    # Held-out pairs are not windows of tokens, so a file's first token is never used.
    files = [fingerprint(Path(path)) | {"first_token": 0} for path in paths]
    return PairRows(texts=list(number_of), pairs=pairs, files=files)
