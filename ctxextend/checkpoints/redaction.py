"""What must never be shown: tokens, and the logins in addresses."""

import base64
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["redacted", "redacted_logs"]

HIDDEN = "***"
TOKEN = re.compile(r"hf_(?:(?:oauth|jwt)_[\w.-]+|[A-Za-z0-9]{16,})")
LOGIN = re.compile(r"(?<=:/)(/?)[^\s/]+(?=@)")  # a path that was an address has one of its two slashes left

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
ADDRESS_VARIABLES = ("HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# Anything shorter stands in every other word.
LEAST_SECRET = 4

LOGGERS = ("huggingface_hub", "datasets", "fsspec", "")


def redacted(text: str) -> str:
    """Return a text without any token or login: those of this user, and whatever looks like one."""
    for secret in sorted(_secrets(), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return LOGIN.sub(rf"\1{HIDDEN}", TOKEN.sub(HIDDEN, text))


@contextmanager
def redacted_logs() -> Iterator[None]:
    """Redact what the Hub's libraries log meanwhile: they log the addresses that they ask, and what servers say."""

    def redact(record: logging.LogRecord) -> bool:
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


def _secrets() -> set[str]:
    """Return the tokens and passwords that are set here, in each form in which they travel."""
    found = {os.environ.get(name, "").strip() for name in TOKEN_VARIABLES} | {_kept_token()}
    for name in ADDRESS_VARIABLES:
        for address in (os.environ.get(name, ""), os.environ.get(name.lower(), "")):
            found |= _login(address)
    return {secret for secret in found if len(secret) >= LEAST_SECRET}


def _kept_token() -> str:
    """Return the token that `hf auth login` wrote down."""
    from huggingface_hub import constants

    try:
        return Path(constants.HF_TOKEN_PATH).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _login(address: str) -> set[str]:
    """Return the password in an address: as it stands, as it is meant, and as HTTP sends it."""
    try:
        parts = urlsplit(address)
        user, password = parts.username or "", parts.password or ""
    except ValueError:
        return set()
    meant = unquote(password)
    sent = base64.b64encode(f"{unquote(user)}:{meant}".encode()).decode() if user or password else ""
    return {password, meant, sent}
