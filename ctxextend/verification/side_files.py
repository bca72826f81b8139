"""Check that config, tokenizer and side files state the new length, and that nothing else in them changed."""

import filecmp
import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from ctxextend.checkpoints.copy import reading
from ctxextend.checkpoints.filenames import NOT_OURS, first_match
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import parse_json, read_bytes
from ctxextend.errors import CheckpointError
from ctxextend.families.lookup import nested
from ctxextend.plan.output_files import CARD_FILE
from ctxextend.plan.plan import ResizePlan
from ctxextend.recipe import RECIPE_FILE
from ctxextend.verification.checks import Check

# Keys of config.json that transformers writes of itself, and that no model obeys.
STAMPS = {("transformers_version",), ("_name_or_path",)}
# Files that may come, go and change without changing what the model does.
HARMLESS = (
    *(CARD_FILE, RECIPE_FILE, ".gitattributes", "trainer_state.json", "train_log.jsonl", "train_loss.png", "runs/*"),
    *(f"{name}{suffix}" for name in ("LICENSE", "LICENCE", "NOTICE") for suffix in ("", ".txt", ".md")),
)
MISSING = object()  # the value of a key that is not there


def check_files(plan: ResizePlan, resized: Checkpoint) -> Check:
    """Compare every file that is no weights file with what the resize should have made of it.

    JSON files are compared by their content, so that another formatting is no fault, and all others byte for byte;
    the card, licences and logs may be anything.
    """
    base = plan.checkpoint
    not_compared = set(base.weights)
    if {resized.relative(file) for file in resized.weights.values()} != not_compared:
        not_compared.add(base.index_file)  # saved in other shards, it has an index of its own
    kept = set(base.code) & set(resized.code)  # which an output may hold, and need not
    files = {*plan.texts, *plan.files["copied"], *kept} - not_compared
    compared = sorted(name for name in files if not _is_harmless(name))
    listed = resized.index["weight_map"] if resized.index else resized.names
    wrong = [f"{resized.index_file} does not list {name}" for name in resized.names if name not in listed]
    wrong += _unexpected_files(plan, resized)
    for name in compared:
        wrong += _differences(plan, resized, name)
    edits = "; ".join(f"{edit.file} {edit.key} {edit.after}" for edit in plan.edits)
    length = "the new length" if plan.is_changed else "its length"
    states = f"{length} is stated everywhere ({edits})" if edits else "no length had to change"
    count = f"{len(compared)} file{'s' * (len(compared) != 1)} compared, all but card, licences, logs and recipe"
    fine = f"{count}: {states}, and nothing else in them changed; no stale weights lie beside"
    return Check("files", not wrong, tuple(wrong) or (fine,))


def _is_harmless(name: str) -> bool:
    return first_match(PurePosixPath(name), HARMLESS) is not None


def _unexpected_files(plan: ResizePlan, resized: Checkpoint) -> Iterator[str]:
    """Yield stale weights, files that the base checkpoint has not, and weights of another variant."""
    base = plan.checkpoint
    for name, why in resized.omitted.items():
        if PurePosixPath(name).name not in NOT_OURS and name not in resized.code:
            yield f"{name} lies beside: {why}"
    known = {*plan.file_sizes, *base.code}
    # Weights alone want a config.json, which must state the new lengths.
    lengths = {table.location.length_paths[0]: table.location.key_value(table.max_len_after) for table in plan.tables}
    if not base.has_config and all(nested(resized.config, path) == length for path, length in lengths.items()):
        known.add(resized.config_file)
    for name in (*resized.copied, *resized.code):
        if name not in known and not _is_harmless(name):
            yield f"{name} is not in the original"
    if base.variant != resized.variant:
        wanted = base.variant or "plain ones"
        yield f"its weights are the variant {resized.variant}, and should be {wanted}"


def _differences(plan: ResizePlan, resized: Checkpoint, name: str) -> Iterator[str]:
    """Yield how one file differs from what the resize should have made of it, which is what it was if not edited."""
    if name not in resized.files and name not in resized.code:
        if name not in resized.omitted:  # what is there and must not be read was named before
            yield f"{name} is missing"
        return
    path, original, wanted = resized.root / name, plan.checkpoint.root / name, plan.texts.get(name)
    try:
        if wanted is None:
            with reading(path):
                if filecmp.cmp(original, path, shallow=False):
                    return
            if path.suffix != ".json":
                yield f"{name} is not what it was, byte for byte"
                return
            wanted = read_bytes(original)
        found = read_bytes(path)
        if wanted == found:
            return
        before, after = (parse_json(text.decode("utf-8"), name) for text in (wanted, found))
    except CheckpointError as error:
        yield error.message
        return
    except UnicodeDecodeError as error:
        yield f"{name} is not UTF-8 text (byte {error.start})."
        return
    edits = {edit.path for edit in plan.edits if edit.file == name}
    for keys, old, new in _changed_values(before, after):
        if keys not in STAMPS or PurePosixPath(name).name != "config.json":
            why = " (the new length)" if any(keys[: len(edit)] == edit for edit in edits) else ""
            yield f"{name}: {'.'.join(keys)} is {_shown(new)}, and should be {_shown(old)}{why}"


def _changed_values(wanted: Any, found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield where two JSON values differ: the path of keys, what it should be, and what it is."""
    if type(wanted) is type(found) and isinstance(wanted, dict | list):
        one, other = (dict(enumerate(value)) if isinstance(value, list) else value for value in (wanted, found))
        for key in dict.fromkeys((*one, *other)):
            yield from _changed_values(one.get(key, MISSING), other.get(key, MISSING), (*path, str(key)))
    elif type(wanted) is not type(found) or wanted != found:
        yield path, wanted, found


def _shown(value: Any) -> str:
    text = "missing" if value is MISSING else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
