"""Whether config, tokenizer and side files say the new length, and nothing else in them changed."""

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from ctxextend.changes import CARD_FILE, RECIPE_FILE
from ctxextend.checkpoints.copying import same_bytes
from ctxextend.checkpoints.filenames import NOT_OURS, matches
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.jsontext import read_bytes
from ctxextend.outputtexts import output_texts
from ctxextend.plan import ResizePlan
from ctxextend.proof.claims import Claim, listed

__all__ = ["check_files"]

# Keys that transformers writes of itself, and that no model obeys.
STAMPS = {("transformers_version",), ("_name_or_path",)}

# Files that may come, go and change without changing what the model does.
HARMLESS = (
    *(CARD_FILE, RECIPE_FILE, "LICENSE", "LICENSE.*", "LICENCE", "LICENCE.*", "NOTICE", "NOTICE.*", ".gitattributes"),
    *("training_args.bin", "trainer_state.json", "train_log.jsonl"),
)


def check_files(plan: ResizePlan, extended: Checkpoint) -> Claim:
    """Compare every file that is no weights file with what the resize should have made of it.

    JSON files are compared by their content, so that another formatting is no fault, and all others byte for byte;
    the card, licences and logs may be anything.

    Args:
        plan: What the resize should have changed.
        extended: What it is said to have become.

    Raises:
        CheckpointError: A file of the original cannot be read.
    """
    expected = {name: text for name, text in output_texts(plan, {}).items() if name != plan.checkpoint.index_file}
    wrong = [*_index(extended), *_stale(extended), *_added(plan, extended)]
    base = plan.checkpoint
    weights = {base.output_name(file) for file in base.weights}
    checked = [name for name in sorted({*expected, *plan.copied} - weights) if not _is_harmless(name)]
    for name in checked:
        path = extended.root / name
        if not path.is_file():
            wrong.append(f"{name} is missing")
        elif name in expected:
            wrong += _json_faults(name, expected[name], read_bytes(path), plan)
        elif not same_bytes(plan.checkpoint.root / name, path):
            wrong += _json_faults(name, read_bytes(plan.checkpoint.root / name), read_bytes(path), plan)
    edits = "; ".join(f"{edit.file} {edit.key} {edit.after}" for edit in plan.edits)
    states = f"the new length is stated everywhere ({edits})" if edits else "no length had to change"
    fine = f"{len(checked)} files compared: {states}, and nothing else in them changed; no stale weights lie beside"
    return Claim("files", not wrong, tuple(wrong) or (fine,))


def _is_harmless(name: str) -> bool:
    return any(matches(PurePosixPath(name), pattern) for pattern in HARMLESS)


def _index(extended: Checkpoint) -> Iterator[str]:
    """Yield what is wrong with an index of shards: it must list every tensor, and their bytes."""
    index = extended.index
    if index is None:
        return
    listed_names = set(index["weight_map"])
    unlisted = [name for name in extended.names if name not in listed_names]
    if unlisted:
        yield f"{extended.index_file} does not list {listed(unlisted)}"
    stated = (index.get("metadata") or {}).get("total_size")
    size = sum(entry.size for file in extended.weights for entry in file.entries.values())
    if stated is not None and stated != size:
        yield f"{extended.index_file} states a total_size of {stated}, and the tensors have {size} bytes"


def _stale(extended: Checkpoint) -> Iterator[str]:
    for name, why in extended.omitted.items():
        if PurePosixPath(name).name not in NOT_OURS:
            yield f"{name} lies beside: {why}"


def _added(plan: ResizePlan, extended: Checkpoint) -> Iterator[str]:
    added = [name for name in extended.copied if name not in plan.output_files and not _is_harmless(name)]
    if added:
        yield f"not in the original: {listed(added)}"


def _json_faults(name: str, wanted: bytes, found: bytes, plan: ResizePlan) -> Iterator[str]:
    """Yield how a file differs; a JSON file by its values."""
    if wanted == found:
        return
    try:
        ours, theirs = json.loads(wanted), json.loads(found)
    except (ValueError, RecursionError):
        yield f"{name} is not what it was, byte for byte"
        return
    edits = {edit.path: edit.after for edit in plan.edits if edit.file == name}
    for path, before, after in _differences(ours, theirs):
        if path not in STAMPS:
            why = " (the new length)" if any(path[: len(edit)] == edit for edit in edits) else ""
            yield f"{name}: {'.'.join(path)} is {_shown(after)}, and should be {_shown(before)}{why}"


def _differences(ours: Any, theirs: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield where two JSON values differ: the path of keys, what it should be, and what it is."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in dict.fromkeys((*ours, *theirs)):
            yield from _differences(ours.get(key, _MISSING), theirs.get(key, _MISSING), (*path, key))
    elif type(ours) is not type(theirs) or ours != theirs:
        yield path, ours, theirs


class _Missing:
    """What a key that is not there has for a value."""

    def __repr__(self) -> str:
        return "missing"


_MISSING = _Missing()


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, _Missing) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
