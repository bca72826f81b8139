"""Suggest the position table of an unknown model type, from names and shapes of tensors."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import FLOATS, TensorEntry
from ctxextend.plan.scanned_class import dependent_tensors
from ctxextend.recipe import flag_words

MAX_RESERVED_ROWS = 8
MAX_SUGGESTIONS = 5
LENGTH_WORDS = ("pos", "ctx", "context", "len", "block_size")  # parts of config keys of a length

# Words in the names of position tables, and words of other tensors that have such a word in their
# names too.
POSITION_WORD = re.compile(
    r"(?<![a-z])(?:w?pos|w?positions?|positional|pos_?emb[a-z]*|pos_?enc[a-z]*|wpe|pe)(?![a-z])"
)
OTHER_WORD = re.compile(
    r"proj|attn|attention|expert|router|norm"
    r"|(?<![a-z])(?:query|key|value|gate|dense|linear|mlp|ffn|fc|conv|rel|relative|ids)(?![a-z])"
)


def looks_like_positions(name: str) -> bool:
    """Whether a tensor has the name of a position table, and not that of another matrix."""
    lowered = name.lower()
    return POSITION_WORD.search(lowered) is not None and OTHER_WORD.search(lowered) is None


class TensorCandidate(NamedTuple):
    """A tensor that may be the position table, and the config key from which its rows follow."""

    entry: TensorEntry
    is_named: bool  # whether it has the name of a position table
    key: str = ""  # empty: no key states its rows
    is_likely: bool = False  # whether the key has the name of a length
    reserved: int = 0  # rows beyond the value of the key
    model_class: str = ""  # of transformers, if its rows follow from the key there

    @property
    def likelihood(self) -> tuple[bool, bool, bool, bool, bool]:
        """What makes it likely, the most important first."""
        is_in_class = bool(self.model_class)
        return is_in_class, self.is_named, self.is_likely, bool(self.key), self.reserved == 0


def suggest_tensor(
    checkpoint: Checkpoint, table: str | None = None, *, asks_class: bool = True
) -> str:
    """List tensors that may be the position table, with flags for the most likely one.

    Args:
        checkpoint: The model.
        table: The only tensor to consider, which the user named.
        asks_class: Whether to build the class of the model too, if transformers has it.

    Returns:
        A hint; empty if there are no candidates.
    """
    of_class = _candidates_of_class(checkpoint, table) if asks_class else []
    names = {candidate.entry.name for candidate in of_class}
    candidates = list(of_class)
    for entry in checkpoint.weights.entries.values():
        candidate = _consider(entry, checkpoint.config)
        # Other matrices can have as many rows by chance, unless the user named one.
        if candidate is None or (table is None and not candidate.is_named):
            continue
        if table in (None, entry.name) and entry.name not in names:
            candidates.append(candidate)
    return _hint(candidates, checkpoint.config)


def suggest_tensor_of_class(checkpoint: Checkpoint) -> str:
    """List tensors whose rows follow from a length in the model's class, with flags for one.

    The class is that of the installed transformers.

    Returns:
        A hint; empty if there are none.
    """
    of_class = _candidates_of_class(checkpoint, None)
    by_key = dict[str, list[TensorCandidate]]()
    for candidate in of_class:
        by_key.setdefault(candidate.key, []).append(candidate)
    for key, sharing in by_key.items():
        if len(sharing) > 1:
            return _shared_key(key, sharing)
    return _hint(of_class, checkpoint.config)


def _shared_key(key: str, sharing: Sequence[TensorCandidate]) -> str:
    """Say that several tables follow from one key, so that no flags resize them."""
    names = " and ".join(candidate.entry.name for candidate in sharing)
    return (
        f"In transformers' {sharing[0].model_class}, {names} have a row for each unit of {key}: "
        "all of them must change, and --tensor changes one."
    )


def _hint(candidates: list[TensorCandidate], config: Mapping[str, Any]) -> str:
    """Return a hint with the likeliest candidates; empty if there are none."""
    candidates = sorted(candidates, key=lambda candidate: candidate.likelihood, reverse=True)
    candidates = candidates[:MAX_SUGGESTIONS]
    if not candidates:
        return ""
    shown = "; ".join(_describe(candidate) for candidate in candidates)
    first = candidates[0]
    reserved, note = _reserved_rows(first, config)
    flags = flag_words(
        {
            "tensor": first.entry.name,
            "reserved-rows": reserved or None,
            "config-key": first.key or "KEY",
        }
    )
    source = ""
    if first.model_class:
        source = (
            f"In transformers' {first.model_class}, {first.entry.name} has a row for each unit of "
            f"{first.key}. "
        )
    return f"{source}Candidate position tables: {shown}. {note}Specify it: {shlex.join(flags)}"


def _candidates_of_class(checkpoint: Checkpoint, table: str | None) -> list[TensorCandidate]:
    """Return the tensors whose rows follow from a length in the class of the model.

    Args:
        checkpoint: The model.
        table: The only tensor to consider; None for all.
    """
    values = dict(_integers(checkpoint.config))
    keys = [key for key in values if any(word in key.lower() for word in LENGTH_WORDS)]
    candidates = list[TensorCandidate]()
    for found in dependent_tensors(checkpoint.config, keys):
        for entry in checkpoint.weights.entries.values():
            is_same = f".{entry.name}".endswith(f".{found.name}")
            if not is_same and not f".{found.name}".endswith(f".{entry.name}"):
                continue
            if table not in (None, entry.name) or entry.shape[:1] != (found.rows,):
                continue
            candidate = TensorCandidate(
                entry,
                is_named=looks_like_positions(entry.name),
                key=found.key,
                is_likely=True,
                reserved=max(found.rows - values[found.key], 0),
                model_class=found.model_class,
            )
            candidates.append(candidate)
    return candidates


def _consider(entry: TensorEntry, config: Mapping[str, Any]) -> TensorCandidate | None:
    """Return a tensor as a candidate with its likeliest key; None if it cannot be a table."""
    if len(entry.shape) != 2 or entry.dtype not in FLOATS:
        return None
    is_named = looks_like_positions(entry.name)
    best: TensorCandidate | None = None
    for key, value in _integers(config):
        candidate = _with_key(entry, key, value, is_named=is_named)
        if candidate is None:
            continue
        if best is None or candidate.likelihood > best.likelihood:
            best = candidate
    rows, width = entry.shape
    if best is None and is_named and rows > width // 8:
        return TensorCandidate(entry, is_named)
    return best


def _with_key(
    entry: TensorEntry, key: str, value: int, *, is_named: bool
) -> TensorCandidate | None:
    """Return a candidate whose rows follow from a config key; None if they do not."""
    rows, width = entry.shape
    reserved = rows - value
    is_likely = any(word in key.lower() for word in LENGTH_WORDS)
    maximum = MAX_RESERVED_ROWS if is_named else 0
    is_length = is_likely and 0 <= reserved <= maximum
    # Hidden and vocabulary sizes are not lengths.
    is_equal = reserved == 0 and "size" not in key and value != width
    if not is_length and not is_equal:
        return None
    return TensorCandidate(entry, is_named, key=key, is_likely=is_likely, reserved=reserved)


def _reserved_rows(candidate: TensorCandidate, config: Mapping[str, Any]) -> tuple[int, str]:
    """Return the reserved rows to suggest for a candidate, and a note about them."""
    if candidate.reserved:
        return candidate.reserved, ""
    rows = candidate.entry.shape[0]
    pad: Any = config.get("pad_token_id")
    is_roberta = "embeddings.position_embeddings" in candidate.entry.name
    # RoBERTa's convention: 514 rows are 512 positions, a multiple of 8, after pad_token_id + 1
    # reserved rows.
    if is_roberta and type(pad) is int and pad > 0 and (rows - pad - 1) % 8 == 0:
        reserved = pad + 1
        return reserved, f"Reserved rows: {reserved}, suggested by pad_token_id {pad}. "
    return 0, "If rows are reserved before position 0, add --reserved-rows K. "


def _describe(candidate: TensorCandidate) -> str:
    """Return a candidate with its shape, and the config key from which its rows follow."""
    text = f"{candidate.entry.name} {list(candidate.entry.shape)}"
    if not candidate.key:
        return text
    rows = candidate.key
    if candidate.reserved:
        rows = f"{candidate.key} + {candidate.reserved}"
    return f"{text} (rows = {rows})"


def _integers(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _integers(value, f"{path}{key}.")
        elif isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield f"{path}{key}", value
