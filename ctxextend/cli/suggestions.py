"""Commands and flags that people type by other names, by meaning and not only by spelling."""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ctxextend.errors import joined, nearest_name

Flags = Mapping[str, Collection[str]]  # the flags of each command, by its name

# What people type, and the words of the command that does it.
COMMANDS_BY_MEANING = {
    "agent": ("skill",),
    "agents": ("skill",),
    "bench": ("compare",),
    "benchmark": ("compare",),
    "check": ("inspect", "--check"),
    "context": ("resize",),
    "diff": ("verify",),
    "enlarge": ("resize",),
    "eval": ("evaluate",),
    "examine": ("inspect",),
    "example": ("demo",),
    "expand": ("resize",),
    "extend": ("resize",),
    "finetune": ("train",),
    "fine-tune": ("train",),
    "help": ("--help",),
    "info": ("inspect",),
    "interpolate": ("resize",),
    "list": ("families",),
    "measure": ("evaluate",),
    "method": ("methods",),
    "models": ("families",),
    "recipe": ("recipes",),
    "scale": ("resize",),
    "serve": ("flags",),
    "show": ("inspect",),
    "shrink": ("resize",),
    "skills": ("skill",),
    "test": ("verify",),
    "tune": ("train",),
    "tutorial": ("demo",),
    "types": ("families",),
    "validate": ("verify",),
    "version": ("--version",),
}


WITHOUT_MODEL = ("demo", "skill")
WITH_LENGTH = ("resize", "flags")  # with --to, by which a model gets a length


@dataclass(frozen=True)
class Meaning:
    """Flags of other programs, and ours of the same meaning."""

    typed: tuple[str, ...]  # without dashes
    flags: tuple[str, ...]  # ours, the most likely one first


MEANINGS = (
    Meaning(
        typed=(
            "context",
            "context-length",
            "context-size",
            "ctx",
            "ctx-len",
            "ctx-size",
            "length",
            "max-len",
            "max-length",
            "max-model-len",
            "max-position-embeddings",
            "max-positions",
            "max-seq-len",
            "max-seq-length",
            "model-max-length",
            "n-ctx",
            "n-positions",
            "new-length",
            "target-length",
        ),
        flags=("--to", "--length", "--seq-len"),
    ),
    Meaning(
        typed=("block-size", "seq-length", "sequence-length"),
        flags=("--seq-len", "--length", "--to"),
    ),
    Meaning(
        typed=(
            "dest",
            "destination",
            "out",
            "out-dir",
            "outdir",
            "output-dir",
            "output-path",
            "save-to",
        ),
        flags=("--output",),
    ),
    Meaning(
        typed=(
            "dataset",
            "datasets",
            "documents",
            "input",
            "text",
            "texts",
            "train-data",
            "train-file",
        ),
        flags=("--data", "--train"),
    ),
    Meaning(
        typed=("eval-file", "valid-data", "validation", "validation-data"), flags=("--eval-data",)
    ),
    Meaning(typed=("learning-rate", "rate"), flags=("--lr",)),
    Meaning(
        typed=("iterations", "max-steps", "num-steps", "train-steps"),
        flags=("--steps",),
    ),
    Meaning(typed=("overwrite", "replace", "y", "yes"), flags=("--force",)),
    Meaning(typed=("lora-r", "lora-rank", "peft", "rank"), flags=("--lora",)),
    Meaning(typed=("arch", "architecture", "family", "type"), flags=("--model-type",)),
    Meaning(typed=("batch", "bs", "train-batch-size"), flags=("--batch-size",)),
    Meaning(typed=("backend", "engine", "runtime", "target"), flags=("--for",)),
    Meaning(
        typed=("algorithm", "rope-scaling", "rope-type", "scaling", "strategy"), flags=("--method",)
    ),
    Meaning(typed=("rope-theta", "rope-base"), flags=("--theta",)),
    Meaning(typed=("position-type", "positions"), flags=("--scheme",)),
    Meaning(typed=("base-model", "original", "reference"), flags=("--base",)),
    Meaning(typed=("cuda", "gpu"), flags=("--device",)),
    Meaning(typed=("bf16", "fp16", "half", "torch-dtype"), flags=("--precision", "--dtype")),
    Meaning(typed=("dryrun", "plan", "simulate"), flags=("--dry-run",)),
    Meaning(typed=("silent", "s"), flags=("--quiet",)),
    Meaning(typed=("continue", "restart"), flags=("--resume",)),
    Meaning(typed=("html",), flags=("--report",)),
    Meaning(typed=("chart", "figure", "save-plot"), flags=("--plot",)),
    Meaning(typed=("max-tokens", "num-tokens"), flags=("--tokens",)),
    Meaning(typed=("metric", "metrics", "task"), flags=("--measure",)),
    Meaning(typed=("random-seed",), flags=("--seed",)),
)
# Flags of other programs for what is an argument here.
OF_THE_MODEL = ("checkpoint", "model", "model-name", "model-name-or-path", "model-path", "source")


def suggest_command(words: Sequence[str], commands: Collection[str]) -> str | None:
    """Return the command that words without a known command mean; None if they are a puzzle.

    Args:
        words: What was typed after the name of the program.
        commands: The names of all commands.
    """
    name, *others = words
    meant = COMMANDS_BY_MEANING.get(name.lower())
    if meant == ("--help",) and others and others[0] in commands:
        meant = (others[0], "--help")
        others = []
    if meant is None:
        near = nearest_name(name, commands)
        if near is None:
            return None
        meant = (near,)
    first, *more = meant
    if first.startswith("--") or first in WITHOUT_MODEL:
        others = []
    others = list(_with_length_flag(first, others))
    return f"Did you mean: {shlex.join(['ctxextend', first, *others, *more])}"


def _with_length_flag(command: str, words: Sequence[str]) -> Iterator[str]:
    """Yield the arguments of a command, with --to before a length that has no flag before it."""
    from ctxextend.length_text import is_length

    previous = ""
    for word in words:
        if command in WITH_LENGTH and is_length(word) and not previous.startswith("-"):
            yield "--to"
        yield word
        previous = word


def suggest_flag(command: str, typed: str, similar: Sequence[str], flags: Flags) -> str | None:
    """Return which flag is meant by an unknown one; None if that is unknown.

    Args:
        command: The command.
        typed: The unknown flag.
        similar: The command's flags that are spelled alike.
        flags: The flags of all commands.
    """
    name = typed.lstrip("-").lower().replace("_", "-")
    own = flags[command]
    if f"--{name}" in own:  # typed with underscores or capitals
        return f"Did you mean --{name}?"
    if name in OF_THE_MODEL and command not in ("run", "recipes"):
        return f"The model is an argument: ctxextend {command} MODEL"
    meant = [flag for row in MEANINGS if name in row.typed for flag in row.flags]
    for flag in meant:
        if flag in own:
            return f"Did you mean {flag}?"
    if command == "run":
        return _suggest_key([f"--{name}", *meant])
    for flag in (f"--{name}", *meant):
        elsewhere = _owners(flag, flags)
        if elsewhere is not None:
            return elsewhere
    return f"Did you mean {similar[0]}?" if similar else None


def _suggest_key(meant: Sequence[str]) -> str | None:
    """Return the key of a recipe that a flag of its steps sets; None if there is none."""
    from ctxextend.cli.hints import recipe_keys

    for flag in meant:
        keys = recipe_keys(flag)
        if keys:
            return f"Set it in the recipe, or with --set {keys[0]}=VALUE"
    return None


def _owners(flag: str, flags: Flags) -> str | None:
    """Return which commands have a flag; None if there are none."""
    commands = [name for name, own in flags.items() if flag in own]
    if not commands:
        return None
    return f"{flag} is a flag of ctxextend {joined(commands)}."
