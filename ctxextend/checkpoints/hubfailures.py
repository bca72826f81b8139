"""What went wrong between here and the Hub, in words that help."""

import re
import sys
from collections.abc import Iterator
from json import JSONDecodeError
from typing import Any

from ctxextend.checkpoints.redaction import redacted

__all__ = ["explain", "http_answer", "quoted", "wait_asked"]

LONGEST_QUOTE = 400
# Of the header RateLimit: no request is left, and how many seconds until there are.
USED_UP = re.compile(r"\br\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
LOGIN = "run `hf auth login`, or set HF_TOKEN"
AGAIN = "Run the same command again"

# What an answer means, and what to do next, by its status.
ANSWERS = {
    401: ("the Hub does not accept the token that it was sent", f"It is wrong or has expired: {LOGIN} to a valid one."),
    403: (
        "the Hub refuses it to this account or token",
        f"A fine-grained token must be allowed to read it: see https://huggingface.co/settings/tokens, then {LOGIN}.",
    ),
    404: ("the Hub has nothing at that address", "Check the spelling, and HF_ENDPOINT if it is set."),
    408: ("the Hub did not get the request in time", f"{AGAIN}."),
    429: (
        "the Hub answers no more for now, since too many requests were made",
        f"{AGAIN} {{when}}. Who is logged in (`hf auth login`) may ask for more.",
    ),
}
NO_LOGIN = ("the Hub demands a login", f"For what is not public {LOGIN}.")
ITS_FAULT = ("the Hub failed", f"Nothing is wrong here. {AGAIN} {{when}}; see https://status.huggingface.co.")
CERTIFICATE = (
    "Check HF_ENDPOINT and the clock; a proxy that opens connections needs its own certificate in SSL_CERT_FILE."
)
REFUSED = ("the Hub refused the request", f"{AGAIN}.")


def explain(error: BaseException) -> tuple[str, str]:
    """Return what went wrong, as the end of a sentence without its full stop, and what to do next.

    Neither holds a secret.

    Args:
        error: What the Hub's client raised; what caused it is looked at too.
    """
    answer = http_answer(error)
    found, hint = _without_answer(error) if answer is None else _answered(answer)
    return redacted(found), redacted(hint)


def http_answer(error: BaseException) -> Any:
    """Return the answer of a server that an error is about; None where there was none."""
    answers = (getattr(each, "response", None) for each in _chain(error))
    return next((answer for answer in answers if hasattr(answer, "status_code")), None)


def _said(error: BaseException) -> str:
    """Return the first line of an error, which may be long, without a secret."""
    lines = redacted(str(error)).strip().splitlines() or [type(error).__name__]
    return lines[0].strip()[:LONGEST_QUOTE].rstrip(".")


def quoted(error: BaseException) -> str:
    """Return a sentence, to follow others, of what a server said, without a secret; empty where it said nothing."""
    messages = (getattr(each, "server_message", None) for each in _chain(error))
    words = " ".join(redacted(str(next(filter(None, messages), ""))).split())
    return f' The Hub said: "{words[:LONGEST_QUOTE]}".' if words else ""


def wait_asked(answer: Any) -> int:
    """Return how many seconds a server asks to wait; 0 where it does not say."""
    limit = USED_UP.search(answer.headers.get("RateLimit", ""))
    seconds = limit[1] if limit else answer.headers.get("Retry-After", "").strip()
    return int(seconds) if seconds.isdecimal() else 0


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it: the client wraps what it meets."""
    while error is not None:
        yield error
        error = error.__cause__


def _answered(answer: Any) -> tuple[str, str]:
    status = int(answer.status_code)
    found, hint = ITS_FAULT if status >= 500 else ANSWERS.get(status, REFUSED)
    if status == 401 and "authorization" not in answer.request.headers:
        found, hint = NO_LOGIN
    seconds = wait_asked(answer)
    when = f"in {seconds:,} seconds" if seconds else "in a few minutes"
    return f"{found} (HTTP {status})", hint.format(when=when)


def _without_answer(error: BaseException) -> tuple[str, str]:
    chain = list(_chain(error))
    if insecure := next((each for each in chain if "[SSL" in str(each)), None):  # which has no type of its own
        return f"no secure connection to the Hub could be made: {_said(insecure)}", CERTIFICATE
    for kinds, found, hint in _causes():
        met = next((each for each in chain if isinstance(each, kinds)), None)
        if met is not None:
            return found.format(_said(met)), hint
    if isinstance(error, OSError) and error.errno is not None:
        return f"the Hub's cache cannot be written: {_said(error)}", "Make room there, or name another place: HF_HOME."
    return _said(error), f"{AGAIN}."


def _causes() -> list[tuple[tuple[type[BaseException], ...], str, str]]:
    """Return what there is besides an answer with a status, the first that fits first: kinds, meaning, and advice."""
    from huggingface_hub.errors import FileMetadataError, HfHubHTTPError, OfflineModeIsEnabled

    # The library that the client speaks HTTP with: there have been several.
    http = sys.modules[next(base.__module__.partition(".")[0] for base in HfHubHTTPError.__mro__[1:])]
    not_understood = (
        FileMetadataError,
        JSONDecodeError,
        AssertionError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
    )
    return [
        (
            (http.ProxyError,),
            "the proxy failed: {}",
            "Check HTTPS_PROXY and HTTP_PROXY, then run the same command again.",
        ),
        (
            (http.TimeoutException,),
            "the Hub did not answer in time",
            f"{AGAIN}; HF_HUB_ETAG_TIMEOUT=60 and HF_HUB_DOWNLOAD_TIMEOUT=60 wait longer.",
        ),
        ((OfflineModeIsEnabled,), "HF_HUB_OFFLINE forbids to fetch it", "Unset that, or name what is here."),
        (
            (http.ConnectError, http.UnsupportedProtocol, http.InvalidURL),
            "the Hub could not be reached: {}",
            "Check the connection, HF_ENDPOINT and HTTPS_PROXY, then run the same command again.",
        ),
        (
            not_understood,
            "what answered does not speak as the Hub does: {}",
            "A proxy or a network's login page may have answered in its place: open https://huggingface.co in a"
            " browser, and check HF_ENDPOINT.",
        ),
        ((ValueError,), "{}", "The same command would fail again: that must be mended first."),
    ]
