"""The limit of each library that tokenizes inputs, of all limits in a checkpoint."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from ctxextend.checkpoint.checkpoint import MODULES, Checkpoint
from ctxextend.inspection.inspection_result import NOT_SET, LibraryLimit, Limit
from ctxextend.inspection.stated_limits import (
    longer_inputs,
    tables_by_tokenizer,
)
from ctxextend.limits.statements import (
    SENTENCE_TRANSFORMERS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    TOKENIZERS,
    TRANSFORMERS,
)
from ctxextend.positions.position_report import PositionReport
from ctxextend.runtimes.engines import ENGINES

# Of transformers and sentence-transformers.
TRUNCATION_KEYS = ("model_max_length", "max_len", "max_seq_length")
# Files that may state a padding token.
PAD_TOKEN_FILES = (TOKENIZER_CONFIG, "special_tokens_map.json")
# sentence-transformers reads config.max_position_embeddings; transformers configs map these keys to
# it.
MAX_POSITION_KEYS = ("max_position_embeddings", "n_positions")


def library_limits(
    checkpoint: Checkpoint, limits: Sequence[Limit], tables: Sequence[PositionReport]
) -> Iterator[LibraryLimit]:
    """Yield the effective limit of each library; `limits` come from `find_limits`.

    With ``truncation=True``, transformers truncates to the tokenizer's ``model_max_length``.
    sentence-transformers truncates to its ``max_seq_length``, or else to the smaller of the
    tokenizer's and the config's length. `tokenizers.Tokenizer` uses the truncation in
    tokenizer.json, which the other two ignore. The only engine of a checkpoint truncates
    nothing.
    """
    blocking = [limit for limit in limits if limit.is_blocking]
    if checkpoint.engine is not None:
        limit = next(iter(blocking), None)
        for table in tables:
            yield _library_limit(ENGINES[checkpoint.engine].name, limit, table)
        return
    for tokenizer, table in tables_by_tokenizer(tables).items():
        folders = {PurePosixPath("."), checkpoint.model}
        if tokenizer:
            folders = {PurePosixPath(tokenizer)}
        names = _names_in(checkpoint, folders)
        local = [
            limit
            for limit in limits
            if limit.table == table.name and PurePosixPath(limit.file).parent in folders
        ]
        if names & TOKENIZER_FILES:
            of_tokenizer, of_sentences = _truncating(local)
            if blocking:
                of_tokenizer = blocking[0]
                of_sentences = blocking[0]
            elif of_sentences is None:
                of_sentences = _smaller_limit(of_tokenizer, local, table)
            yield _library_limit(TRANSFORMERS, of_tokenizer, table)
            if not tokenizer and _can_pad(checkpoint, folders):
                yield _library_limit(SENTENCE_TRANSFORMERS, of_sentences, table)
        if TOKENIZER in names:
            yield _tokenizers_limit(local)


def _names_in(checkpoint: Checkpoint, folders: set[PurePosixPath]) -> set[str]:
    """Return the names of the files in some folders of a checkpoint."""
    paths = [PurePosixPath(name) for name in checkpoint.copied]
    return {path.name for path in paths if path.parent in folders}


def _truncating(limits: Sequence[Limit]) -> tuple[Limit | None, Limit | None]:
    """Return the limits to which transformers and sentence-transformers truncate."""
    found = {limit.used_by: limit for limit in limits if limit.key in TRUNCATION_KEYS}
    return found.get(TRANSFORMERS), found.get(SENTENCE_TRANSFORMERS)


def _library_limit(library: str, limit: Limit | None, table: PositionReport) -> LibraryLimit:
    """Return the effective limit of a library that truncates to `limit`, or cannot load it."""
    if limit is not None and limit.is_blocking:
        decided_by = f"{limit.file} {limit.key}"
        return LibraryLimit(name=library, tokens=0, decided_by=decided_by, beyond="not loaded")
    served = table.location.lengths.served
    if limit is None or limit.tokens is None or limit.tokens > served:
        return LibraryLimit(
            name=library,
            tokens=served,
            decided_by=table.stated_in,
            beyond=longer_inputs(table).beyond,
        )
    return LibraryLimit(
        name=library, tokens=limit.tokens, decided_by=f"{limit.file} {limit.key}", beyond="cut"
    )


def _tokenizers_limit(limits: Sequence[Limit]) -> LibraryLimit:
    for limit in limits:
        if limit.key == "truncation.max_length":
            decided_by = f"{limit.file} {limit.key}"
            return LibraryLimit(
                name=TOKENIZERS, tokens=limit.tokens, decided_by=decided_by, beyond="cut"
            )
    return LibraryLimit(
        name=TOKENIZERS,
        tokens=None,
        decided_by=f"no truncation in {TOKENIZER}",
        beyond="not cut",
    )


def _can_pad(checkpoint: Checkpoint, folders: set[PurePosixPath]) -> bool:
    """Whether sentence-transformers can encode, which always pads.

    GPT-2's tokenizer has no padding token.
    """
    if MODULES in checkpoint.copied:
        return True
    for name in checkpoint.copied:
        path = PurePosixPath(name)
        if path.parent not in folders or path.name not in PAD_TOKEN_FILES:
            continue
        if checkpoint.read_object(name).get("pad_token") is not None:
            return True
    return False


def _smaller_limit(
    of_tokenizer: Limit | None, limits: Sequence[Limit], table: PositionReport
) -> Limit | None:
    """Return the smaller of the tokenizer's limit and the config's value.

    The latter also counts reserved rows.
    """
    candidates = list[Limit]()
    if of_tokenizer is not None and of_tokenizer.tokens is not None:
        candidates.append(of_tokenizer)
    of_config = _config_value(limits, table)
    if of_config is not None:
        candidates.append(of_config)
    return min(candidates, key=lambda limit: limit.tokens or 0, default=None)


def _config_value(limits: Sequence[Limit], table: PositionReport) -> Limit | None:
    """Return the config's value as a limit, if sentence-transformers reads it."""
    location = table.location
    if location.path or location.config_key not in MAX_POSITION_KEYS:
        return None
    key = location.effective_key
    for limit in limits:
        if limit.key not in (key, f"{key}{NOT_SET}"):
            continue
        value = limit.value
        if value is None:
            value = location.family.defaults.get(key)
        if not isinstance(value, int):
            return None
        return replace(limit, tokens=value)
    return None
