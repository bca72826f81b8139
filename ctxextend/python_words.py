"""Texts that name flags, in the words of Python.

Texts name settings as flags, such as ``--keep-first 5``. To a caller from Python, the same setting
is the argument ``keep_first=5``. Whole commands, such as ``ctxextend verify DIR``, stay commands.
"""

import re
from collections.abc import Mapping

# Settings that are arguments of a public function, by their flag; flags with other names below.
ARGUMENTS = frozenset(
    {
        "attention-window",
        "base",
        "batch-size",
        "budget",
        "config-key",
        "corpus",
        "data",
        "deep",
        "device",
        "distill",
        "dtype",
        "edit-only",
        "encoder-only",
        "eval-data",
        "eval-every",
        "fix-limits",
        "force",
        "fsdp",
        "hold-out",
        "keep-first",
        "length",
        "link",
        "lora",
        "lr",
        "measure",
        "method",
        "model-type",
        "no-base",
        "output",
        "part",
        "per-device-batch-size",
        "precision",
        "qrels",
        "queries",
        "query-scale",
        "quick",
        "report-to",
        "reserved-rows",
        "resume",
        "revision",
        "save",
        "save-adapter",
        "save-every",
        "scheme",
        "seed",
        "seq-len",
        "steps",
        "subfolder",
        "tensor",
        "text-field",
        "theta",
        "threads",
        "to",
        "tokenizer",
        "tokens",
        "train",
        "trainable",
        "trained-length",
        "tune",
        "variant",
        "verify",
        "weight-decay",
        "window",
        "window-skip",
    }
)
OTHER_NAMES = {"for": "runtime", "set": "changes"}  # arguments that have another name
LISTED = frozenset({"set"})  # flags of arguments that take a list of values
SWITCHES = frozenset(  # flags without a value
    {
        "deep",
        "edit-only",
        "encoder-only",
        "fix-limits",
        "force",
        "fsdp",
        "link",
        "no-base",
        "quick",
        "resume",
        "save-adapter",
        "tune",
        "verify",
        "window-skip",
    }
)
# Flags that stand for a value of an argument.
VALUES = {"contrastive": 'contrastive="passages"', "pairs": 'contrastive="pairs"'}
# Words of a sentence that follow a flag; any other word is its value.
SENTENCE_WORDS = frozenset(
    {
        "above",
        "adds",
        "and",
        "applies",
        "apply",
        "as",
        "below",
        "belong",
        "both",
        "cannot",
        "changes",
        "creates",
        "do",
        "does",
        "from",
        "has",
        "instead",
        "is",
        "must",
        "nor",
        "of",
        "or",
        "require",
        "requires",
        "runs",
        "searches",
        "shards",
        "than",
        "to",
        "trains",
        "uploads",
        "with",
        "works",
        "writes",
        "wrote",
    }
)
FLAG_WITH_VALUE = re.compile(
    r"(?<![\w-])--([a-z][a-z-]*)(?![\w-])(?:[ =](?!-)([^\s(]*[^\s(.,:;)]))?"
)
# A whole command, with its flags: up to a mark that ends the sentence, and not a dot in a name.
COMMAND_LINE = re.compile(
    r"(?:torchrun [^,;`]*?-m )?ctxextend [a-z]+.*?(?=[.,;`]?(?:\s*$)|(?<!\.\.)[.,;](?=\s)|`)"
)
# A quoted text with flags: what someone typed.
QUOTED = re.compile(r"(?<![\w=])'(?=\S)[^']* --[^']*'")
KEPT = re.compile(f"{COMMAND_LINE.pattern}|{QUOTED.pattern}")
NUMERAL = re.compile(r"-?\d[\d.]*(e-?\d+)?")
NEXT_ARGUMENT = re.compile(r'(=[^\s.,:;)"]+|="[^"]*") (?=\w+=)')
REPEATED = re.compile(r'(?P<name>\w+)="[^"]*"(?:, (?P=name)="[^"]*")+')
# Further methods after a first one, such as ``method="yarn" or theta or linear``.
FURTHER_METHODS = re.compile(r'(methods?="[^"]*")((?: or [a-z]\w*)+)(?=[.,]|$)')
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*")  # such as N or MODEL


def in_words_of_python(text: str, renamed: Mapping[str, str]) -> str:
    """Return a text that names flags with arguments instead.

    Args:
        text: The text.
        renamed: Arguments of the function that was called whose names differ from those of others.
    """
    parts: list[str] = []
    position = 0
    for kept in KEPT.finditer(text):
        parts.append(_with_arguments(text[position : kept.start()], renamed))
        parts.append(kept[0])
        position = kept.end()
    parts.append(_with_arguments(text[position:], renamed))
    return "".join(parts)


def _with_arguments(text: str, renamed: Mapping[str, str]) -> str:
    """Return a text with arguments instead of flags."""

    def argument(match: re.Match[str]) -> str:
        flag, value = match.groups()
        if flag in VALUES:
            return VALUES[flag] + match[0][len(flag) + 2 :]
        if flag not in ARGUMENTS and flag not in OTHER_NAMES:
            return match[0]  # of another program, or without an argument
        name = OTHER_NAMES.get(flag, flag.replace("-", "_"))
        name = renamed.get(name, name)
        rest = match[0][len(flag) + 2 :]
        if flag in SWITCHES:
            return f"{name}=True{rest}"
        if value is None or value in SENTENCE_WORDS:
            return f"{name}{rest}"
        if flag in LISTED:
            return f"{name}=[{_literal(value)}]"
        return f"{name}={_literal(value)}"

    separated = NEXT_ARGUMENT.sub(r"\1, ", FLAG_WITH_VALUE.sub(argument, text))
    return FURTHER_METHODS.sub(_quoted, REPEATED.sub(_as_list, separated))


def _as_list(match: re.Match[str]) -> str:
    """Return an argument that is passed several times as one with a list of values."""
    name = match["name"]
    return f"{name}=[{match[0].replace(f'{name}=', '')}]"


def _quoted(match: re.Match[str]) -> str:
    """Return methods after a first one as strings, like it."""
    others = match[2].split(" or ")[1:]
    return " or ".join([match[1], *map(_literal, others)])


def _literal(value: str) -> str:
    """Return the value of a flag as Python writes it."""
    is_quoted = value[0] in "'\""
    if is_quoted or NUMERAL.fullmatch(value) or PLACEHOLDER.fullmatch(value):
        return value
    return f'"{value}"'
