"""What must never be shown or written: tokens, and the logins in addresses."""

import base64
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

__all__ = ["hidden", "hidden_values", "redacted", "redacted_logs"]

HIDDEN = "***"
TOKEN = re.compile(r"hf_(?:(?:oauth|jwt)_[\w.-]+|[A-Za-z0-9]{16,})")
LOGIN = re.compile(r"(?<=:/)(/?)[^\s/]+(?=@)")  # a path that was an address has one of its two slashes left

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
ADDRESS_VARIABLES = ("HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# Anything shorter stands in every other word.
LEAST_SECRET = 4
# Anything shorter may be a word of a recipe or a key of JSON.
LEAST_HIDDEN = 8

LOGGERS = ("huggingface_hub", "datasets", "fsspec", "")


def redacted(text: str) -> str:
    """Return a text without any token or login: those of this user, and whatever looks like one."""
    return LOGIN.sub(rf"\1{HIDDEN}", _without(_secrets(), text, LEAST_SECRET))


def hidden(text: str) -> str:
    """Return what is to be printed or written without this user's secrets and without tokens, else as it is.

    What only looks like a login is left: a path may look so too, and whoever reads an output's path must find it.
    """
    return _without(_secrets(), text, LEAST_HIDDEN)


def hidden_values(value: Any) -> Any:
    """Return plain values, as JSON or YAML holds them, with `hidden` texts and keys."""
    return _hidden_values(_secrets(), value)


def _hidden_values(secrets: Sequence[str], value: Any) -> Any:
    if isinstance(value, str):
        return _without(secrets, value, LEAST_HIDDEN)
    if isinstance(value, Mapping):
        return {_hidden_values(secrets, key): _hidden_values(secrets, item) for key, item in value.items()}
    return [_hidden_values(secrets, item) for item in value] if isinstance(value, list | tuple) else value


@contextmanager
def redacted_logs() -> Iterator[None]:
    """Redact what the Hub's libraries log meanwhile: they log the addresses that they ask, and what servers say."""
    import logging

    def redact(record: Any) -> bool:
        record.msg, record.args = redacted(record.getMessage()), None
        if record.exc_info:
            record.exc_text = redacted(logging.Formatter().formatException(record.exc_info))
        return True

    handlers = [handler for name in LOGGERS for handler in logging.getLogger(name).handlers]
    handlers += [logging.lastResort] if logging.lastResort else []
    for handler in handlers:
        handler.addFilter(redact)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(redact)


def _without(secrets: Sequence[str], text: str, least: int) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN) if len(secret) >= least else text
    return TOKEN.sub(HIDDEN, text)


def _secrets() -> tuple[str, ...]:
    """Return the tokens and passwords that are set here, in each form in which they travel, the longest first."""
    tokens = [os.environ.get(name, "").strip() for name in TOKEN_VARIABLES]
    addresses = [os.environ.get(case, "") for name in ADDRESS_VARIABLES for case in (name, name.lower())]
    return _sorted_secrets((*tokens, _kept_token(_token_path())), tuple(addresses))


@lru_cache(maxsize=1)
def _sorted_secrets(tokens: tuple[str, ...], addresses: tuple[str, ...]) -> tuple[str, ...]:
    found = {secret for secret in set(tokens).union(*map(_login, addresses)) if len(secret) >= LEAST_SECRET}
    return tuple(sorted(found, key=len, reverse=True))


def _token_path() -> str:
    """Return where `hf auth login` writes a token down, as the Hub's client finds it, which is slow to import."""
    home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME', '~/.cache')}/huggingface"
    path = os.path.expandvars(os.environ.get("HF_TOKEN_PATH") or f"{home}/token")
    return os.path.expanduser(path)  # noqa: PTH111 - never raises


@cache
def _kept_token(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _login(address: str) -> set[str]:
    """Return the password in an address: as it stands, as it is meant, as HTTP sends it, and in pieces.

    Whoever takes an address apart that holds a bare slash may name one of the pieces, as a port.
    """
    before, _, _ = address.rpartition("://")[2].rpartition("@")
    user, _, password = before.partition(":")
    meant = unquote(password)
    sent = base64.b64encode(f"{unquote(user)}:{meant}".encode()).decode() if before else ""
    return {password, meant, sent, *re.split("[:/]", password)}
