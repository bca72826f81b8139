"""Every place in a checkpoint that states a length, who obeys it, and what a user of each library gets."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.checkpoints.length_limits import StatedLimit, stated_limits
from ctxextend.families.lookup import nested
from ctxextend.inspection.table_report import LibraryLimit, Limit, TableReport
from ctxextend.plan.find_tables import OpenedModel

TRANSFORMERS = "transformers"
SENTENCE_TRANSFORMERS = "sentence-transformers"
TOKENIZERS = "tokenizers"
NOBODY = "none"
# Who obeys each kind of limit that side files state.
LIBRARIES = {
    "tokenizer": TRANSFORMERS,
    "sentence": SENTENCE_TRANSFORMERS,
    "truncation": TOKENIZERS,
    "padding": TOKENIZERS,
    "generation": "transformers generate",
}
# The keys by which transformers and sentence-transformers cut.
CUTTING_KEYS = ("model_max_length", "max_len", "max_seq_length")
# The names of sentence-transformers' own config, in the order in which it looks for them; it obeys the first.
SENTENCE_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# What a folder holds that AutoTokenizer can load.
TOKENIZER_FILES = {
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model"),
    "sentencepiece.bpe.model",
}
# Under these keys transformers' configs answer to the name by which sentence-transformers asks for the length.
ASKED_FOR = ("max_position_embeddings", "n_positions")

NOT_LOADED = "the model does not load"
# Stands behind a key that the config leaves out, so that transformers' default holds.
LEFT_OUT = " (left out)"


def find_limits(model: OpenedModel, tables: Sequence[TableReport]) -> tuple[Limit, ...]:
    """Return every place that states a length, those in the config first."""
    checkpoint = model.checkpoint
    by_key: dict[str, Limit] = {}
    for table in tables if checkpoint.has_config else ():
        for limit in _config_limits(model, table):
            if limit.key not in by_key or not limit.agrees:  # of tables that share a key, the one that disagrees
                by_key[limit.key] = limit
    limits = list(by_key.values())
    for table in tables:
        limits.append(Limit(table.file, table.name, table.rows, table.positions, TRANSFORMERS, table.name))
        limits += dict.fromkeys(_buffer_limits(checkpoint, table))  # those of all layers as one
    for tokenizer, table in _readers(tables).items():
        limits += (_side_file_limit(checkpoint, stated, table) for stated in stated_limits(checkpoint, tokenizer))
    return tuple(limits)


def _readers(tables: Sequence[TableReport]) -> dict[str, TableReport]:
    """Return the first table that reads each tokenizer's texts, by the tokenizer's folder."""
    found: dict[str, TableReport] = {}
    for table in tables:
        if table.location.tokenizer is not None:
            found.setdefault(table.location.tokenizer, table)
    return found


def _config_limits(model: OpenedModel, table: TableReport) -> Iterator[Limit]:
    config, file, place = model.checkpoint.config, model.checkpoint.config_file, table.location

    def limit_of(key: str, value: Any, library: str) -> Limit:
        rows = place.rows(value) if isinstance(value, int) and not isinstance(value, bool) else None
        tokens = None if rows is None else place.positions(rows)
        reason = f"{table.name} has {table.rows} rows: {NOT_LOADED}" if library != NOBODY else "nothing reads it"
        return Limit(file, key, value, tokens, library, table.name, "" if rows == table.rows else reason)

    obeyed = place.paths_of(place.effective_key)[-1]
    for path in place.length_paths:
        value = nested(config, path)
        if value is not None:
            yield limit_of(".".join(path), value, TRANSFORMERS if path == obeyed else NOBODY)
    default = place.family.defaults.get(place.table.config_key)
    if place.stated(place.effective_key) is None and default is not None:
        limit = limit_of(f"{place.config_key}{LEFT_OUT}", default, TRANSFORMERS)
        yield replace(limit, value=None) if limit.agrees else limit
    for key in model.architecture.family.limits:
        value = config.get(key)
        if isinstance(value, int):
            yield Limit(file, key, value, value, TRANSFORMERS, table.name, _consequence(value, table))


def _buffer_limits(checkpoint: Checkpoint, table: TableReport) -> Iterator[Limit]:
    """Yield the tensors that are sized by the length."""
    wanted = table.location.key_value(table.positions)
    for name, file in checkpoint.names.items():
        buffer, shape = table.location.buffer(name), file.entries[name].shape
        if buffer is None or not shape:  # old files hold scalars too
            continue
        length = shape[0 if buffer.content == "rows" else -1]
        shown = re.sub(r"\.\d+\.", ".*.", name) if "*" in buffer.name else name
        tokens = length - (wanted - table.positions)
        library = TRANSFORMERS if buffer.is_kept else f"old {TRANSFORMERS}"
        reason = "" if length == wanted else f"{table.name} has {table.rows} rows"
        yield Limit(checkpoint.relative(file), shown, length, tokens, library, table.name, reason)


def _side_file_limit(checkpoint: Checkpoint, stated: StatedLimit, table: TableReport) -> Limit:
    library, tokens, positions = LIBRARIES[stated.kind], stated.tokens, table.positions
    if library == SENTENCE_TRANSFORMERS and stated.file != _sentence_config(checkpoint):
        library = NOBODY
    reason = _consequence(tokens, table)
    if stated.kind in ("padding", "generation") and (tokens is None or tokens < positions):
        reason = ""
    elif reason and library == NOBODY:
        reason = "nothing reads it"
    elif reason and stated.kind == "padding":
        reason = f"every text is padded to {tokens} tokens: {reason}"
    return Limit(stated.file, ".".join(stated.path), stated.value, tokens, library, table.name, reason)


def _consequence(tokens: int | None, table: TableReport) -> str:
    """Say what a limit that is not the table's does to texts; empty where it is the table's."""
    positions = table.positions
    beyond = "share the last position" if table.location.table.clamps else "fail"
    if tokens == positions:
        return ""
    if tokens is None:
        return f"texts of more than {positions} tokens are not cut, and {beyond}"
    if tokens < positions:
        return f"texts are cut at {tokens}, and the table has {positions} positions"
    return f"the table has {positions} positions: texts of {positions + 1} to {tokens} tokens {beyond}"


def _sentence_config(checkpoint: Checkpoint) -> str | None:
    """Return the config that sentence-transformers obeys, the first that says anything; None without modules.json."""
    if "modules.json" not in checkpoint.copied:
        return None
    paths = ((checkpoint.model / name).as_posix() for name in SENTENCE_CONFIGS)
    return next((path for path in paths if path in checkpoint.copied and load_object(checkpoint.root / path)), None)


def library_limits(
    checkpoint: Checkpoint, limits: Sequence[Limit], tables: Sequence[TableReport]
) -> Iterator[LibraryLimit]:
    """Yield what each client makes of a text, by the files that it obeys; `limits` are those of `find_limits`.

    transformers cuts, where asked to, at the tokenizer's ``model_max_length``; sentence-transformers at its own
    ``max_seq_length``, and without that at the smaller of the tokenizer's and the config's length; a bare
    `tokenizers.Tokenizer` at the truncation in tokenizer.json, which the other two ignore.
    """
    for tokenizer, table in _readers(tables).items():
        folders = {PurePosixPath(tokenizer)} if tokenizer else {PurePosixPath("."), checkpoint.model}
        names = {PurePosixPath(name).name for name in checkpoint.copied if PurePosixPath(name).parent in folders}
        own = [limit for limit in limits if limit.table == table.name and PurePosixPath(limit.file).parent in folders]
        cutting = {limit.library: limit for limit in own if limit.key in CUTTING_KEYS}
        tokenizer_limit, sentence_limit = cutting.get(TRANSFORMERS), cutting.get(SENTENCE_TRANSFORMERS)
        if names & TOKENIZER_FILES:
            obstacle = next((limit for limit in limits if limit.reason.endswith(NOT_LOADED)), None)
            yield _library_limit(TRANSFORMERS, tokenizer_limit, table, obstacle)
            if not tokenizer and _can_pad(checkpoint, folders):
                limit = sentence_limit or _smaller_limit(tokenizer_limit, own, table)
                yield _library_limit(SENTENCE_TRANSFORMERS, limit, table, obstacle)
        if "tokenizer.json" in names:
            truncation = next((limit for limit in own if limit.key == "truncation.max_length"), None)
            if truncation:
                yield LibraryLimit(TOKENIZERS, truncation.tokens, f"{truncation.file} {truncation.key}", "cut")
            else:
                yield LibraryLimit(TOKENIZERS, None, "tokenizer.json, which states no truncation", "not cut")


def _library_limit(library: str, limit: Limit | None, table: TableReport, obstacle: Limit | None) -> LibraryLimit:
    if obstacle is not None:
        return LibraryLimit(library, 0, f"{obstacle.file} {obstacle.key}", "not loaded")
    if limit is None or limit.tokens is None or limit.tokens > table.positions:
        beyond = "last position" if table.location.table.clamps else "fails"
        return LibraryLimit(library, table.positions, f"{table.file} {table.name}", beyond)
    return LibraryLimit(library, limit.tokens, f"{limit.file} {limit.key}", "cut")


def _can_pad(checkpoint: Checkpoint, folders: set[PurePosixPath]) -> bool:
    """Whether sentence-transformers can read texts: it pads them all, and GPT-2's tokenizer has nothing to pad with."""
    stating = ("tokenizer_config.json", "special_tokens_map.json")
    paths = (path for path in map(PurePosixPath, checkpoint.copied) if path.name in stating and path.parent in folders)
    tokens = (load_object(checkpoint.root / path).get("pad_token") for path in paths)
    return "modules.json" in checkpoint.copied or any(token is not None for token in tokens)


def _smaller_limit(tokenizer_limit: Limit | None, limits: Sequence[Limit], table: TableReport) -> Limit | None:
    """Return the smaller of the tokenizer's limit and the config's own number, which counts reserved rows too."""
    place = table.location
    stated = [limit for limit in (tokenizer_limit,) if limit is not None and limit.tokens is not None]
    keys = (place.effective_key, f"{place.effective_key}{LEFT_OUT}")
    found = next((limit for limit in limits if limit.key in keys), None)
    if found is not None and not place.path and place.table.config_key in ASKED_FOR:
        number = place.family.defaults.get(place.effective_key) if found.value is None else found.value
        if isinstance(number, int):
            stated.append(replace(found, tokens=number))
    return min(stated, key=lambda limit: limit.tokens or 0, default=None)
