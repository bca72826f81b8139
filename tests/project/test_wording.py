"""One word per idea: names, strings, comments and pages use the words of docs/design.md."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.repository import ROOT

PATHS = (
    "ctxextend",
    "tests",
    "benchmarks",
    "recipes",
    "skills",
    "docs",
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "Makefile",
)
SUFFIXES = (".py", ".pyi", ".html", ".js", ".css", ".md", ".yaml", ".txt", ".json", "")
GENERATED = ("bundled", "__pycache__", "results", "golden.json")
LIBRARY_NAMES = {"siblings"}  # an attribute of huggingface_hub.ModelInfo

# Parts of names, each with the word to use instead.
NAMES = {
    "alone": "only",
    "anew": "again",
    "aside": "backup",
    "begun": "started",
    "behind": "after",
    "beside": "next to, or in",
    "caution": "warning",
    "cautions": "warnings",
    "claim": "check",
    "claims": "checks",
    "contest": "comparison",
    "framed": "special_tokens",
    "kin": "related",
    "made": "created",
    "mend": "fix",
    "mended": "fixed",
    "misfit": "mismatch",
    "oddities": "outliers",
    "oddity": "outlier",
    "original": "base",
    "proof": "verification",
    "pupil": "student",
    "remade": "rebuilt",
    "room": "disk_space, or free_memory",
    "sibling": "temporary",
    "siblings": "temporary",
    "stamp": "fingerprint",
    "standing": "result",
    "standings": "results",
    "subject": "reference",
    "taught": "distilled",
    "told": "labels, or reported",
    "unmade": "not_created",
    "way": "method, or mode",
    "ways": "methods, or modes",
}
# Phrases in strings, comments and pages, as regular expressions in any case.
PHRASES = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bis no [a-z]+": "is not a",
    r"\banew\b": "again",
    r"\bbegun\b|brought to its end|gone on with|go on with": "started, finished, resume",
    r"what it was made of|was made of\b": "base checkpoint",
    r"\bin its stead\b|in the place of": "instead of",
    r"\b(stands?|stood|lies?|lay) (there|here|beside|in|behind|at|on|under)\b": "is",
    r"\bwhat (it|they) (was|were) before\b": "its previous value",
    r"\bparted? (from|slow|into)": "split",
    r"\btold\b|\btells? (apart|both)": "is given, reports, distinguishes",
    r"\bhowever often\b|\bat (a )?places? of (its|their) own\b": "at random positions",
    r"\bof (its|their|one's) own\b": "its, a separate",
    r"\blevel with\b|not surely": "tied with, not significantly",
    r"\bby what\b|\bof what is\b": "by the",
    r"\bcautions?\b|\boddit(y|ies)\b|\bpupils?\b|\bcontests?\b|\bstandings?\b": "warning, outlier, "
    "student, result",
    r"\balone\b": "only",
    r"\bkin\b": "related",
    r"\bbeside\b": "next to",
    r"\bbehind\b": "after",
    r"\bin front of\b|\boffset rows?\b": "before, reserved rows",
    r"\bnobody\b": "no library",
    r"\bmade (by|again)\b": "created by, reproduced",
    r"\bno whole\b": "not a valid",
    r"\bhas no meaning\b": "does not apply",
    r"\bleave (it|them|one of them|that) out\b": "remove",
    r"\btaught\b|\bproves?d?\b|\bproof\b": "distilled, verifies",
    r"\bnothing else\b": "only",
    r"\bway\b(?= of its)|\bin such a way\b": "so",
}
ANY_PHRASE = re.compile("|".join(PHRASES), re.IGNORECASE)


def tracked_files() -> Iterator[Path]:
    for name in PATHS:
        path = ROOT / name
        files = [path]
        if path.is_dir():
            files = sorted(path.rglob("*"))
        for file in files:
            if is_checked(file):
                yield file


def is_checked(file: Path) -> bool:
    """Whether a file contains text that someone wrote; this file lists the words themselves."""
    if not file.is_file() or file == Path(__file__):
        return False
    return file.suffix in SUFFIXES and not {*file.parts} & {*GENERATED}


def texts_and_names(file: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line number, text and whether it is a name, for each string, comment or name.

    Files of other kinds than Python are read line by line.
    """
    content = file.read_text("utf-8")
    if file.suffix not in (".py", ".pyi"):
        for number, line in enumerate(content.splitlines(), 1):
            yield number, line, False
        return
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        first, _ = token.start
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            for number, line in enumerate(token.string.splitlines(), first):
                yield number, line, False
        elif token.type == tokenize.NAME:
            yield first, token.string, True


def replaced_words(text: str, *, is_name: bool) -> Iterator[tuple[str, str]]:
    """Yield each replaced word in a text or a name, and the word to use instead."""
    if is_name and text in LIBRARY_NAMES:
        return
    if is_name:
        for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text):
            instead = NAMES.get(word.lower())
            if instead is not None:
                yield text, instead
    elif ANY_PHRASE.search(text):
        for pattern, instead in PHRASES.items():
            for match in re.finditer(pattern, text, re.IGNORECASE):
                yield match[0], instead


def test_repository_uses_one_word_per_idea() -> None:
    found: list[str] = []
    for file in tracked_files():
        name = file.relative_to(ROOT)
        for line, text, is_name in texts_and_names(file):
            for word, instead in replaced_words(text, is_name=is_name):
                found.append(f"{name}:{line}: {word!r}: use {instead!r}")
    assert not found, "\n".join(found)
