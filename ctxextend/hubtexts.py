"""Data sets of the Hub: named in a word, and read row by row as they arrive."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ctxextend.checkpoints.hub import asking
from ctxextend.checkpoints.hubfailures import explain, http_answer, quoted
from ctxextend.checkpoints.redaction import redacted
from ctxextend.errors import CtxextendError, DataError

__all__ = ["PREFIX", "HubText", "named", "read_data_set"]

# By which a data set is told from a file, whatever files there are.
PREFIX = "hf:"
SPELLING = "hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]"
# In seconds, between two rows: the Hub counts requests by five minutes, and a training that waits is not lost.
LONGEST_WAIT = 300
PATTERN = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<config>[^/:@]+))?(?::(?P<split>[^:@]+))?(?:@(?P<revision>.+))?"
)


@dataclass(frozen=True)
class HubText:
    """A part of a data set of the Hub.

    Attributes:
        repo: Its owner and name, with a slash between.
        config: Which of its configurations; None is the only one.
        split: Which of its splits.
        revision: A branch, tag or commit; None is its main branch.
    """

    repo: str
    config: str | None
    split: str
    revision: str | None

    def __str__(self) -> str:
        config = f"/{self.config}" if self.config else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{PREFIX}{self.repo}{config}:{self.split}{revision}"


def named(word: str) -> HubText:
    """Return the data set that a word names; nothing is fetched.

    Args:
        word: Spelled ``hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]``; the split ``train`` goes without saying.

    Raises:
        DataError: It is spelled in another way, or the library that reads data sets is not installed.
    """
    found = PATTERN.fullmatch(word)
    if found is None:
        raise DataError(f"{redacted(word)} names no data set of the Hub.", f"Spell it {SPELLING}.")
    if find_spec("datasets") is None:
        raise DataError(f"{word} needs datasets to be read.", "Install it: pip install 'ctxextend[train]'.")
    return HubText(found["repo"], found["config"], found["split"] or "train", found["revision"])


def read_data_set(source: HubText, text_field: str) -> Iterator[str]:
    """Yield the texts of a column, each as it arrives; what is null is left out.

    Nothing that the data set holds is executed: the library no longer can.

    Raises:
        DataError: There is no such data set, configuration, split or column, it cannot be reached, or the column holds
            no text.
    """
    with _explained(source):
        with asking(give_up=_give_up):
            rows = _open(source)
        if rows.column_names is not None:
            _check_column(rows.column_names, text_field, source)
            rows = rows.select_columns([text_field])  # what is not asked for is not decoded
        with asking(LONGEST_WAIT, _give_up):
            for row in rows:
                _check_column(row, text_field, source)
                if row[text_field] is not None:
                    yield _text(row[text_field], text_field, source)


def _open(source: HubText) -> Any:
    import datasets

    # Its whole address: a folder here may have the same name.
    address, revision = f"hf://datasets/{source.repo}", source.revision
    return datasets.load_dataset(address, source.config, split=source.split, revision=revision, streaming=True)


def _give_up(answer: Any) -> None:
    """Raise what the libraries do not take for a reason to wait."""
    raise _RefusedError(answer)


class _RefusedError(Exception):
    """A server asked to wait for longer than anyone would."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.response = response


@contextmanager
def _explained(source: HubText) -> Iterator[None]:
    """Turn what the libraries raise into a DataError with what to do next."""
    try:
        yield
    except CtxextendError:
        raise
    except Exception as error:  # each format and each way to fail has its own
        raise DataError(*_failure(source, error)) from error


def _failure(source: HubText, error: Exception) -> tuple[str, str]:
    from datasets.exceptions import DatasetNotFoundError

    answer = http_answer(error)
    is_missing = answer is not None and answer.status_code == 404 and not hasattr(error, "response")
    if answer is not None and not is_missing and not isinstance(error, DatasetNotFoundError):
        found, hint = explain(error)
        return f"{source} cannot be read: {found}.", hint + quoted(error)
    words = " ".join(redacted(str(error)).split())[:400].rstrip(".")
    return f"{source} cannot be read: {words or type(error).__name__}.", _hint(error)


def _hint(error: Exception) -> str:
    import datasets.exceptions

    if isinstance(error, datasets.exceptions.DatasetNotFoundError):
        return f"Spell it {SPELLING}; what is private needs a login: hf auth login."
    if isinstance(error, ConnectionError):
        return "Check the network, or name files that are here."
    return f"Check its name, {SPELLING}, or name files that are here."


def _check_column(columns: Any, text_field: str, source: HubText) -> None:
    if text_field not in columns:
        names = ", ".join(list(columns)[:20])
        raise DataError(f"{source} has no column {text_field!r}; it has {names}.", "Name the text's: --text-field.")


def _text(value: Any, text_field: str, source: HubText) -> str:
    if not isinstance(value, str):
        raise DataError(
            f"The column {text_field!r} of {source} holds {type(value).__name__}, no text.",
            "Name the text's: --text-field.",
        )
    return value
