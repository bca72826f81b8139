"""Markdown tables of what runtimes do with folders, from the rules of `ctxextend.runtimes`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ctxextend.families.registry import FAMILIES
from ctxextend.positions.positions import Positions
from ctxextend.positions.rotary import Rotary
from ctxextend.positions.sinusoids import Sinusoids
from ctxextend.positions.unlimited import Unlimited
from ctxextend.runtimes.engines import (
    BETAS,
    ENGINES,
    ONLY_ROPE_PARAMETERS,
    REMOVED,
    RUN,
    SWITCHED,
    UNSCALED,
    Engine,
    Outcome,
    Rule,
)
from ctxextend.tables.rope_types import SHORT_LIST

WITHOUT_ROPE = ("learned", "sinusoidal", "ALiBi", "relative")
# How pages call positions; all others are the rope type.
NAMES = {
    "learned": "table",
    "sinusoidal": "sinusoids",
    UNSCALED: "`limits`",
    "ALiBi": "ALiBi",
    "relative": "relative",
    REMOVED: "none",
}
ORDER = (
    *WITHOUT_ROPE,
    UNSCALED,
    "theta",
    "yarn",
    "linear",
    "dynamic",
    "longrope",
    "llama3",
    SWITCHED,
    "proportional",
    REMOVED,
)
EFFECTS = {
    Outcome.IGNORES: "ignored",
    Outcome.DIFFERS: "other positions",
    Outcome.REFUSES: "does not load",
}
# What all folders that `resize` writes have, or what a page explains elsewhere.
NOT_SHOWN = (ONLY_ROPE_PARAMETERS, BETAS)
PLACEHOLDERS = {"factor": "FACTOR", "first_trained": "L", "theta": "THETA", "max_len": "N"}
# Of the overview by model type.
COMMON_TYPES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma3_text",
    "phi3",
    "olmo2",
    "deepseek_v2",
    "gpt_neox",
    "phi",
    "falcon",
    "bloom",
    "gpt2",
    "opt",
    "bert",
    "distilbert",
    "roberta",
    "xlm-roberta",
    "mpnet",
    "modernbert",
)
CHOSEN_FIRST = ("yarn", "theta", "linear", *WITHOUT_ROPE)  # as `--for` tries them
CODE_RUN = f"{RUN}:"  # how the evidence of rules starts that ran only some of the code
ROPE_KINDS = {*ORDER} - {*WITHOUT_ROPE}


class Behaviour(NamedTuple):
    """What an engine does with some positions of a model type."""

    outcome: Outcome
    reason: str  # why they are not right; may be empty
    options: str  # with which they are right, or a condition; may be empty
    evidence: str


def runtimes_table() -> str:
    """Return the runtimes with their versions and commands."""
    body = list[tuple[str, ...]]()
    for engine in ENGINES.values():
        command = "Python code"
        if engine.command:
            command = f"`{engine.command.format(folder='FOLDER', max_len='N', task='TASK')}`"
        body.append((engine.name, f"`{engine.key}`", engine.version, command))
    return markdown(("engine", "`--for`", "version", "command"), body)


def common_types_table() -> str:
    """Return what each engine applies to common model types, as ``--for`` chooses it."""
    runtimes = [engine for engine in ENGINES.values() if _names_types(engine)]
    body = list[tuple[str, ...]]()
    for model_type in COMMON_TYPES:
        cells = [_chosen(engine, model_type) for engine in runtimes]
        body.append((f"`{model_type}`", *cells))
    return markdown(("model type", *(engine.name for engine in runtimes)), body)


def rules_tables() -> str:
    """Return a table for each engine: model types that it treats alike, and what it does."""
    parts = list[str]()
    for engine in ENGINES.values():
        if not _names_types(engine):
            continue
        body = list[tuple[str, ...]]()
        for model_types, cells in _groups(engine):
            body.append((", ".join(f"`{name}`" for name in model_types), *cells))
        table = markdown(("model types", "right", "not right", "evidence"), body)
        parts.append(f"### {engine.name}\n\n{table}\n")
    return "".join(parts)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> str:
    """Return a Markdown table, whose last columns are `numbers`."""
    rules = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    lines = [f"| {' | '.join(cells)} |\n" for cells in (head, *rows)]
    return "".join([lines[0], f"|{'|'.join(rules)}|\n", *lines[1:]])


# Rules


def _rules_of(engine: Engine) -> list[Rule]:
    """Return the rules for folders that have nothing special."""
    return [rule for rule in engine.rules if rule.has.isdisjoint((*NOT_SHOWN, engine.key))]


def _names_types(engine: Engine) -> bool:
    """Whether an engine has rules for some model types; those for all types need no table."""
    return any(rule.types for rule in _rules_of(engine))


def _evidence(rule: Rule) -> str:
    if rule.evidence == RUN:
        return RUN
    if rule.evidence.startswith(CODE_RUN):
        return "code run"
    return "read"


def _linked_evidence(rule: Rule) -> str:
    text = _evidence(rule)
    return f"[{text}]({rule.evidence})" if "://" in rule.evidence else text


def _length(rule: Rule) -> str:
    """Return the length that an engine takes from most folders; empty if it takes none."""
    for name in rule.length:
        if name != "sentence":
            return name
    return ""


# What an engine does with one model type


def _behaviours(engine: Engine, model_type: str) -> dict[str, Behaviour]:
    """Return what an engine does with each positions that a model type can have; as rules say."""
    found = dict[str, Behaviour]()
    possible = _possible(model_type)
    wrong_names = dict[str, str]()  # prefixes of tensor names, by positions
    for rule in _rules_of(engine):
        if rule.types and model_type not in rule.types:
            continue
        for positions in rule.positions:
            if rule.has:
                (wrong_names[positions],) = rule.has
            elif positions in possible or not possible:
                behaviour = _behaviour(engine, rule, model_type, positions)
                if positions in wrong_names:
                    text = f"if names of tensors do not start with `{wrong_names[positions]}`"
                    behaviour = behaviour._replace(options=text)
                found.setdefault(positions, behaviour)
    return found


def _possible(model_type: str) -> set[str]:
    """Return the positions that a model type can have; none for an unknown type."""
    if model_type not in FAMILIES:
        return set()
    kinds = set[str]()
    for table in FAMILIES[model_type].tables:
        kinds |= _possible_of(table)
    return kinds


def _possible_of(table: Positions) -> set[str]:
    if isinstance(table, Rotary):
        return ROPE_KINDS if table.methods else {UNSCALED}
    if isinstance(table, Unlimited):
        return {table.scheme}
    if isinstance(table, Sinusoids):
        return {"sinusoidal", "learned"}  # stored sinusoids can be trained
    return {"learned"}


def _behaviour(engine: Engine, rule: Rule, model_type: str, positions: str) -> Behaviour:
    evidence = _linked_evidence(rule)
    if rule.outcome is not Outcome.SERVES and not rule.options:
        return Behaviour(rule.outcome, _cell(rule.reason), "", evidence)
    names = list(rule.options)
    length = _length(rule)
    counts_rows = positions == "learned" and _key_counts_reserved_rows(model_type)
    takes_another = length in ("scaled", "trained") or (length == "stated" and counts_rows)
    if takes_another and "length" in engine.options:
        names.append("length")
    options = " ".join(engine.options[name] for name in names).format(**PLACEHOLDERS)
    text = f"with `{options}`" if options else ""
    if length == "tokenizer":
        text = f"with a tokenizer, or `{engine.options['length'].format(**PLACEHOLDERS)}`"
    if counts_rows and "length" not in engine.options and "sentence" in rule.length:
        text = "with the files of sentence-transformers"
    if SHORT_LIST in rule.ignores:
        text = f"{text} (short inputs change)".lstrip()
    return Behaviour(Outcome.SERVES, "", text, evidence)


def _key_counts_reserved_rows(model_type: str) -> bool:
    """Whether the length key of a model type is larger than the number of positions."""
    if model_type not in FAMILIES:
        return False
    for table in FAMILIES[model_type].tables:
        if table.reserved.inside_key and (table.reserved.rows or table.reserved.config_key):
            return True
    return False


def _cell(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "\\|")


def _groups(engine: Engine) -> Iterator[tuple[list[str], tuple[str, str, str]]]:
    """Yield model types that an engine treats alike, and what it does, as cells of a table."""
    groups = dict[tuple[str, str, str], list[str]]()
    for model_type in dict.fromkeys(name for rule in _rules_of(engine) for name in rule.types):
        behaviours = _behaviours(engine, model_type)
        evidence = dict.fromkeys(behaviour.evidence for behaviour in behaviours.values())
        cells = (_right(behaviours), _not_right(behaviours), ", ".join(evidence))
        groups.setdefault(cells, []).append(model_type)
    for cells, model_types in groups.items():
        yield sorted(model_types), cells


def _right(behaviours: Mapping[str, Behaviour]) -> str:
    found = dict[str, list[str]]()
    for kind, behaviour in behaviours.items():
        if behaviour.outcome is Outcome.SERVES:
            found.setdefault(behaviour.options, []).append(kind)
    return "; ".join(f"{_names(found[options])} {options}".rstrip() for options in sorted(found))


def _not_right(behaviours: Mapping[str, Behaviour]) -> str:
    found = dict[Behaviour, list[str]]()
    for kind, behaviour in behaviours.items():
        if behaviour.outcome is not Outcome.SERVES:
            found.setdefault(behaviour._replace(evidence=""), []).append(kind)
    parts = list[str]()
    for behaviour, kinds in found.items():
        names = _names(kinds)
        if behaviour.outcome is Outcome.REFUSES and len(kinds) == len(behaviours):
            names = "all"
        reason = f" ({behaviour.reason})" if behaviour.reason else ""
        parts.append(f"{names}: {EFFECTS[behaviour.outcome]}{reason}")
    return "; ".join(parts)


def _names(kinds: Iterable[str]) -> str:
    ordered = sorted(kinds, key=ORDER.index)
    return ", ".join(NAMES.get(kind, f"`{kind}`") for kind in ordered)


def _chosen(engine: Engine, model_type: str) -> str:
    """Return what ``--for`` chooses, ``no`` if all that is known is not right, or nothing."""
    behaviours = _behaviours(engine, model_type)
    known = [behaviours[kind] for kind in CHOSEN_FIRST if kind in behaviours]
    for kind in CHOSEN_FIRST:
        behaviour = behaviours.get(kind)
        if behaviour is not None and behaviour.outcome is Outcome.SERVES:
            return f"{_names([kind])}{'*' if behaviour.options else ''}"
    return "no" if known else ""
