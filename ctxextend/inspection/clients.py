"""What a user of each client gets, by the limits that it obeys."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.jsontext import load_object
from ctxextend.inspection.limits import LEFT_OUT, SENTENCE_TRANSFORMERS, TOKENIZERS, TRANSFORMERS, Limit, Measured

__all__ = ["ClientLimit", "client_limits"]

# What a folder holds that AutoTokenizer can load.
TOKENIZER_FILES = {
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model"),
    "sentencepiece.bpe.model",
}

# The keys by which transformers and sentence-transformers cut.
CUTTING_KEYS = ("model_max_length", "max_len", "max_seq_length")

# Under these keys transformers' configs answer to the name by which sentence-transformers asks for the length.
ASKED_FOR = ("max_position_embeddings", "n_positions")


@dataclass(frozen=True)
class ClientLimit:
    """What a user of one client gets.

    Attributes:
        client: ``transformers`` (with truncation=True), ``sentence-transformers``, or ``tokenizers`` alone.
        tokens: How many tokens of a text it reads; None where it cuts nowhere, 0 where the model does not load.
        decided_by: The place that decides it.
        beyond: What becomes of a longer text: ``cut``, ``fails`` in the model, ``last position`` (its end shares
            that), ``not cut``, or ``not loaded``.
    """

    client: str
    tokens: int | None
    decided_by: str
    beyond: str

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return asdict(self)


def client_limits(
    checkpoint: Checkpoint, limits: list[Limit], table: Measured, tokenizer: str
) -> Iterator[ClientLimit]:
    """Yield what each client makes of a text, by the files that it obeys.

    transformers cuts, where asked to, at the tokenizer's ``model_max_length``; sentence-transformers at its own
    ``max_seq_length``, and without that at the smaller of the tokenizer's and the config's length, offset rows
    included; a bare `tokenizers.Tokenizer` at the truncation in tokenizer.json, which the other two ignore. Where no
    file of the tokenizer states a padding token, and no modules.json makes it a sentence encoder, the second is left
    out: it would fail at every text.

    Args:
        checkpoint: The checkpoint.
        limits: From `find_limits`.
        table: The table that reads this tokenizer's texts.
        tokenizer: The tokenizer's folder below the root; empty is the checkpoint's own.
    """
    folders = {PurePosixPath(tokenizer)} if tokenizer else {PurePosixPath("."), checkpoint.model}
    names = {PurePosixPath(name).name for name in checkpoint.copied if PurePosixPath(name).parent in folders}
    own = [limit for limit in limits if limit.table == table.name and PurePosixPath(limit.file).parent in folders]
    by_client = {limit.client: limit for limit in own if limit.key in CUTTING_KEYS}
    tokenizer_limit, sentence = by_client.get(TRANSFORMERS), by_client.get(SENTENCE_TRANSFORMERS)
    if names & TOKENIZER_FILES:
        obstacle = next((limit for limit in limits if limit.stops_loading), None)
        yield _client(TRANSFORMERS, tokenizer_limit, table, obstacle)
        if not tokenizer and _can_pad(checkpoint, folders):
            yield _client(SENTENCE_TRANSFORMERS, sentence or _capped(tokenizer_limit, own, table), table, obstacle)
    if "tokenizer.json" in names:
        truncation = next((limit for limit in own if limit.key == "truncation.max_length"), None)
        where = f"{truncation.file} {truncation.key}" if truncation else "tokenizer.json, which states no truncation"
        tokens = truncation.tokens if truncation else None
        yield ClientLimit(TOKENIZERS, tokens, where, "cut" if truncation else "not cut")


def _can_pad(checkpoint: Checkpoint, folders: set[PurePosixPath]) -> bool:
    """Whether sentence-transformers can read texts: it pads them all, and GPT-2's tokenizer has nothing to pad with."""
    stating = ("tokenizer_config.json", "special_tokens_map.json")
    paths = (path for path in map(PurePosixPath, checkpoint.copied) if path.name in stating and path.parent in folders)
    return "modules.json" in checkpoint.copied or any(
        load_object(checkpoint.root / path).get("pad_token") is not None for path in paths
    )


def _capped(tokenizer_limit: Limit | None, limits: list[Limit], table: Measured) -> Limit | None:
    """Return the smaller of the tokenizer's limit and the config's own number, which counts offset rows too."""
    place = table.place
    asked = not place.path and place.table.config_key in ASKED_FOR
    keys = (place.obeyed_key, f"{place.obeyed_key}{LEFT_OUT}") if asked else ()
    config = next((limit for limit in limits if limit.key in keys), None)
    number = place.family.defaults.get(place.obeyed_key) if config and config.value is None else config and config.value
    counted = replace(config, tokens=number) if config and isinstance(number, int) else None
    stated = [limit for limit in (tokenizer_limit, counted) if limit is not None and limit.tokens is not None]
    return min(stated, key=lambda limit: limit.tokens or 0, default=None)


def _client(client: str, limit: Limit | None, table: Measured, obstacle: Limit | None) -> ClientLimit:
    if obstacle is not None:
        return ClientLimit(client, 0, f"{obstacle.file} {obstacle.key}", "not loaded")
    positions = table.positions
    if limit is None or limit.tokens is None or limit.tokens > positions:
        beyond = "last position" if table.place.table.clamps else "fails"
        return ClientLimit(client, positions, f"{table.file} {table.name}", beyond)
    return ClientLimit(client, limit.tokens, f"{limit.file} {limit.key}", "cut")
