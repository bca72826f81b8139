"""Whether config, tokenizer and side files say the new length, and nothing else in them changed."""

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from ctxextend.checkpoints.comparing import same_bytes
from ctxextend.checkpoints.filenames import NOT_OURS, first_match
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.jsontext import check_depth, parse_json, read_bytes
from ctxextend.errors import CheckpointError
from ctxextend.families.lookup import nested
from ctxextend.plan.changes import CARD_FILE
from ctxextend.plan.outputtexts import output_texts
from ctxextend.plan.plan import ResizePlan
from ctxextend.recipe import RECIPE_FILE
from ctxextend.verification.claims import Claim

__all__ = ["check_files"]

# Keys of config files that transformers writes of itself, and that no model obeys.
STAMPS = {("transformers_version",), ("_name_or_path",)}

# Files that may come, go and change without changing what the model does.
HARMLESS = (
    *(CARD_FILE, RECIPE_FILE, ".gitattributes", "trainer_state.json", "train_log.jsonl", "train_loss.png", "runs/*"),
    *(f"{name}{suffix}" for name in ("LICENSE", "LICENCE", "NOTICE") for suffix in ("", ".txt", ".md")),
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
    base, expected = plan.checkpoint, output_texts(plan, {})
    not_compared = {base.output_name(file) for file in base.weights}
    if _shards(extended) != not_compared:  # saved in other shards, it has an index of its own
        not_compared.add(base.index_file)
    kept = set(base.code) & set(extended.code)  # which an output may hold, and need not
    checked = [name for name in sorted({*expected, *plan.copied, *kept} - not_compared) if not _is_harmless(name)]
    wrong = [*_index(extended), *_stale(extended), *_added(plan, extended), *_variant(plan, extended)]
    for name in checked:
        wrong += _faults(plan, extended, name, expected.get(name))
    edits = "; ".join(f"{edit.file} {edit.key} {edit.after}" for edit in plan.edits)
    length = "the new length" if plan.is_changed else "its length"
    states = f"{length} is stated everywhere ({edits})" if edits else "no length had to change"
    count = f"{len(checked)} file{'s' * (len(checked) != 1)} compared, all but card, licences, logs and recipe"
    fine = f"{count}: {states}, and nothing else in them changed; no stale weights lie beside"
    return Claim("files", not wrong, tuple(wrong) or (fine,))


def _is_harmless(name: str) -> bool:
    return first_match(PurePosixPath(name), HARMLESS) is not None


def _shards(checkpoint: Checkpoint) -> set[str]:
    return {checkpoint.relative(file) for file in checkpoint.weights}


def _index(extended: Checkpoint) -> Iterator[str]:
    """Yield what is wrong with an index of shards: it must list every tensor, and their bytes."""
    index = extended.index
    if index is None:
        return
    unlisted = (name for name in extended.names if name not in index["weight_map"])
    yield from (f"{extended.index_file} does not list {name}" for name in unlisted)
    metadata = index.get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    size = sum(file.entries.size for file in extended.weights)
    if stated is not None and stated != size:
        yield f"{extended.index_file} states a total_size of {stated}, and the tensors have {size} bytes"


def _stale(extended: Checkpoint) -> Iterator[str]:
    for name, why in extended.omitted.items():
        if PurePosixPath(name).name not in NOT_OURS and name not in extended.code:
            yield f"{name} lies beside: {why}"


def _added(plan: ResizePlan, extended: Checkpoint) -> Iterator[str]:
    known = {*plan.output_files, *plan.checkpoint.code}
    for name in (*extended.copied, *extended.code):
        if name not in known and not _is_harmless(name) and not _is_wanted_config(plan, extended, name):
            yield f"{name} is not in the original"


def _is_wanted_config(plan: ResizePlan, extended: Checkpoint, name: str) -> bool:
    """Whether a file is the config.json that weights alone want, and states the new lengths."""
    if plan.checkpoint.has_config or name != extended.config_file:
        return False
    lengths = {table.place.length_paths[0]: table.place.key_value(table.max_len_after) for table in plan.tables}
    return all(nested(extended.config, path) == length for path, length in lengths.items())


def _variant(plan: ResizePlan, extended: Checkpoint) -> Iterator[str]:
    ours, theirs = plan.checkpoint.stored.variant, extended.stored.variant
    if ours != theirs:
        yield f"its weights are the variant {theirs}, and should be {ours or 'plain ones'}"


def _faults(plan: ResizePlan, extended: Checkpoint, name: str, wanted: bytes | None) -> Iterator[str]:
    """Yield how one file differs from what it should be, which is what it was where nothing else is given."""
    if name not in extended.files and name not in extended.code:
        if name not in extended.omitted:  # what is there and must not be read was named before
            yield f"{name} is missing"
        return
    path, original = extended.root / name, plan.checkpoint.root / name
    try:
        if wanted is None and same_bytes(original, path):
            return
        if wanted is None and path.suffix != ".json":
            yield f"{name} is not what it was, byte for byte"
            return
        wanted, found = read_bytes(original) if wanted is None else wanted, read_bytes(path)
        if wanted == found:
            return
        yield from _json_faults(plan, name, *(_parsed(text, name) for text in (wanted, found)))
    except CheckpointError as error:
        yield error.message


def _parsed(text: bytes, name: str) -> Any:
    try:
        value = parse_json(text.decode("utf-8"), name)
        check_depth([value], name)
        return value
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{name} is not UTF-8 text (byte {error.start}).") from None


def _json_faults(plan: ResizePlan, name: str, wanted: Any, found: Any) -> Iterator[str]:
    edits = {edit.path for edit in plan.edits if edit.file == name}
    stamps = STAMPS if PurePosixPath(name).name == "config.json" else set()
    for path, before, after in _differences(wanted, found):
        if path not in stamps:
            why = " (the new length)" if any(path[: len(edit)] == edit for edit in edits) else ""
            yield f"{name}: {'.'.join(path)} is {_shown(after)}, and should be {_shown(before)}{why}"


def _differences(ours: Any, theirs: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield where two JSON values differ: the path of keys, what it should be, and what it is."""
    if type(ours) is type(theirs) and isinstance(ours, dict | list):
        pairs = [dict(enumerate(value)) if isinstance(value, list) else value for value in (ours, theirs)]
        for key in dict.fromkeys((*pairs[0], *pairs[1])):
            yield from _differences(pairs[0].get(key, _MISSING), pairs[1].get(key, _MISSING), (*path, str(key)))
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
