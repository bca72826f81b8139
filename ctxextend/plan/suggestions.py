"""Suggest the position table of a model type that is not in the registry, from the names and shapes
of its tensors.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import FLOATS, TensorEntry
from ctxextend.errors import SPECIFY_TABLE
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
    """Whether a tensor has the name of a position table, and not that of another matrix, such as a
    projection.
    """
    lowered = name.lower()
    return POSITION_WORD.search(lowered) is not None and OTHER_WORD.search(lowered) is None


def suggest_tensor(checkpoint: Checkpoint, table: str | None = None) -> str:
    """List tensors that may be the position table, with flags for the most likely one; empty if
    there are none.
    """
    candidates = []
    for entry in checkpoint.entries.values():
        if len(entry.shape) != 2 or entry.dtype not in FLOATS or table not in (None, entry.name):
            continue
        rows, width = entry.shape
        is_named = looks_like_positions(entry.name)
        keys = []
        for key, value in _integers(checkpoint.config):
            reserved = rows - value
            is_likely = any(word in key.lower() for word in LENGTH_WORDS)
            is_length = is_likely and 0 <= reserved <= (MAX_RESERVED_ROWS if is_named else 0)
            # Hidden and vocabulary sizes are not lengths.
            if is_length or (reserved == 0 and "size" not in key and value != width):
                keys.append((is_likely, reserved == 0, reserved, key))
        if keys or (is_named and rows > width // 8):
            is_likely, _, reserved, key = max(
                keys, key=lambda item: item[:2], default=(False, True, 0, "")
            )
            candidates.append((is_named, is_likely, bool(key), reserved == 0, entry, key, reserved))
    # Other matrices can have as many rows by chance, unless the user named one.
    candidates = [item for item in candidates if item[0] or table is not None]
    candidates = sorted(candidates, key=lambda item: item[:4], reverse=True)[:MAX_SUGGESTIONS]
    if not candidates:
        return ""
    shown = "; ".join(_describe(entry, key, reserved) for *_, entry, key, reserved in candidates)
    *_, entry, key, reserved = candidates[0]
    pad: Any = checkpoint.config.get("pad_token_id")
    note = ""
    is_roberta = "embeddings.position_embeddings" in entry.name and type(pad) is int and pad > 0
    # RoBERTa's convention: 514 rows are 512 positions, a multiple of 8, after pad_token_id + 1
    # reserved rows.
    if is_roberta and not reserved and (entry.shape[0] - pad - 1) % 8 == 0:
        reserved = pad + 1
        note = f"Reserved rows: {reserved}, suggested by pad_token_id {pad}. "
    if not reserved:
        note = "If rows are reserved before position 0, add --reserved-rows K. "
    flags = flag_words(
        {"tensor": entry.name, "reserved-rows": reserved or None, "config-key": key or "KEY"}
    )
    return f"Candidate position tables: {shown}. {note}{SPECIFY_TABLE}{shlex.join(flags)}"


def _describe(entry: TensorEntry, key: str, reserved: int) -> str:
    """Return a candidate with its shape, and the config key from which its rows follow."""
    text = f"{entry.name} {list(entry.shape)}"
    if not key:
        return text
    rows = f"{key} + {reserved}" if reserved else key
    return f"{text} (rows = {rows})"


def _integers(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _integers(value, f"{path}{key}.")
        elif isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield f"{path}{key}", value
