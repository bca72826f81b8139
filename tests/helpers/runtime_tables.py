"""Markdown tables of what runtimes do with folders, from the rules of `ctxextend.runtimes`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ctxextend.families.registry import FAMILIES
from ctxextend.positions.positions import Positions
from ctxextend.positions.rotary import Rotary
from ctxextend.positions.sinusoids import Sinusoids
from ctxextend.positions.unlimited import Unlimited
from ctxextend.runtimes.all_rules import RULES
from ctxextend.runtimes.rule_schema import (
    ALIBI,
    COMMON_ROPE_TYPES,
    LEARNED,
    LINEAR,
    LONGROPE,
    NTK_ALPHA,
    PROPORTIONAL,
    RAISED_THETA,
    RELATIVE,
    REMOVED,
    RUN,
    SINUSOIDAL,
    SWITCHED,
    UNSCALED,
    YARN,
    Effect,
    Length,
    Rule,
    Runtime,
)
from ctxextend.runtimes.runtimes import RUNTIMES

WITHOUT_ROPE = (LEARNED, SINUSOIDAL, ALIBI, RELATIVE)
# How pages call positions; all others are the rope type.
NAMES = {
    LEARNED: "table",
    SINUSOIDAL: "sinusoids",
    ALIBI: "ALiBi",
    RELATIVE: "relative",
    UNSCALED: "`limits`",
    REMOVED: "none",
}
ORDER = (
    *WITHOUT_ROPE,
    UNSCALED,
    RAISED_THETA,
    *COMMON_ROPE_TYPES,
    SWITCHED,
    PROPORTIONAL,
    NTK_ALPHA,
    REMOVED,
)
LENGTHS = {
    Length.SERVED: "N",
    Length.STATED: "the length key",
    Length.STATED_SCALED: "the length key x factor",
    Length.TRAINED_KEY: "the key of the first trained length, or the length key without one",
    Length.TOKENIZER: "the tokenizer's limit, or the length key without one",
}
EFFECTS = {
    Effect.IGNORES: "ignored",
    Effect.DIFFERS: "other positions",
    Effect.REFUSES: "does not load",
}
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
CHOSEN_FIRST = (
    YARN,
    RAISED_THETA,
    LINEAR,
    LEARNED,
    SINUSOIDAL,
    ALIBI,
    RELATIVE,
)  # as `--for` tries them
CODE_RUN = f"{RUN}:"  # how the evidence of rules starts that ran only some of the code
ROPE_KINDS = {kind for rule in RULES for kind in rule.positions} - {*WITHOUT_ROPE}
HAVE_ATTENTION_FACTOR = (YARN, LONGROPE, SWITCHED)


class Behaviour(NamedTuple):
    """What a runtime does with some positions of a model type."""

    effect: Effect
    reason: str  # why they are not right; may be empty
    options: str  # with which they are right, or a condition; may be empty
    evidence: str


def runtimes_table() -> str:
    """Return the runtimes with their versions and commands."""
    body = list[tuple[str, ...]]()
    for runtime in RUNTIMES:
        command = "Python code"
        if runtime.command:
            command = f"`{runtime.command.format(folder='FOLDER', max_len='N', task='TASK')}`"
        body.append((runtime.name, f"`{runtime.key}`", runtime.version, command))
    return markdown(("engine", "`--for`", "version", "command"), body)


def runtime_settings_table() -> str:
    """Return which settings and lengths each runtime reads, and how that is known."""
    body = list[tuple[str, ...]]()
    for runtime in RUNTIMES:
        rules = _rules_of(runtime)
        dialects = _dialects(runtime)
        if not rules:
            body.append((runtime.name, dialects, "-", "-", "no rules"))
            continue
        evidence = ", ".join(dict.fromkeys(_evidence(rule) for rule in rules))
        body.append((runtime.name, dialects, _attention_factor(runtime), _lengths(rules), evidence))
    head = ("engine", "rotary settings from", "attention_factor", "context length", "evidence")
    return markdown(head, body)


def common_types_table() -> str:
    """Return what each runtime applies to common model types, as ``--for`` chooses it."""
    runtimes = [runtime for runtime in RUNTIMES if _names_types(runtime)]
    body = list[tuple[str, ...]]()
    for model_type in COMMON_TYPES:
        cells = [_chosen(runtime, model_type) for runtime in runtimes]
        body.append((f"`{model_type}`", *cells))
    return markdown(("model type", *(runtime.name for runtime in runtimes)), body)


def rules_tables() -> str:
    """Return a table for each runtime: model types that it treats alike, and what it does."""
    parts = list[str]()
    for runtime in RUNTIMES:
        if not _names_types(runtime):
            continue
        body = list[tuple[str, ...]]()
        for model_types, cells in _groups(runtime):
            body.append((", ".join(f"`{name}`" for name in model_types), *cells))
        table = markdown(("model types", "right", "not right", "evidence"), body)
        parts.append(f"### {runtime.name}\n\n{table}\n")
    return "".join(parts)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> str:
    """Return a Markdown table, whose last columns are `numbers`."""
    rules = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    lines = [f"| {' | '.join(cells)} |\n" for cells in (head, *rows)]
    return "".join([lines[0], f"|{'|'.join(rules)}|\n", *lines[1:]])


# Rules


def _rules_of(runtime: Runtime) -> list[Rule]:
    return [rule for rule in RULES if rule.runtime == runtime.key]


def _names_types(runtime: Runtime) -> bool:
    """Whether a runtime has rules for some model types; those for all types need no table."""
    return any(rule.model_types for rule in _rules_of(runtime))


def _evidence(rule: Rule) -> str:
    if rule.evidence == RUN:
        return RUN
    if rule.evidence.startswith(CODE_RUN):
        return "code run"
    return "read"


def _linked_evidence(rule: Rule) -> str:
    text = _evidence(rule)
    return f"[{text}]({rule.evidence})" if "://" in rule.evidence else text


def _attention_factor(runtime: Runtime) -> str:
    """Return whether a runtime reads the attention factor of settings that it applies."""
    applied = [rule for rule in _rules_of(runtime) if rule.effect is Effect.APPLIES or rule.option]
    kinds = {kind for rule in applied for kind in rule.positions}
    if kinds.isdisjoint(HAVE_ATTENTION_FACTOR):
        return "-"
    if runtime.ignores_attention_factor:
        return "ignored"
    ignoring = [rule for rule in applied if rule.ignores_attention_factor]
    ignored = dict.fromkeys(kind for rule in ignoring for kind in rule.positions)
    if ignored:
        return f"ignored with {_names(ignored)}"
    return "read"


def _dialects(runtime: Runtime) -> str:
    """Return the keys of rotary settings that a runtime reads, with exceptions."""
    text = " or ".join(f"`{key}`" for key in runtime.dialects)
    exceptions = dict[str, None]()
    for rule in _rules_of(runtime):
        more = [key for key in rule.dialects if key not in runtime.dialects]
        if more:
            types = ", ".join(f"`{name}`" for name in rule.model_types)
            exceptions[f" ({types}: also `{more[0]}`)"] = None
    return text + "".join(exceptions)


def _lengths(rules: Sequence[Rule]) -> str:
    """Return which lengths a runtime takes: the most common one first, others with their types."""
    applied = [rule for rule in rules if rule.effect is Effect.APPLIES]
    counts = {length: _number_of_types(applied, length) for length in Length}
    main = max(counts, key=lambda length: counts[length])
    texts = [LENGTHS[main]]
    for length, count in counts.items():
        if count and length is not main:
            others = [rule for rule in applied if rule.length is length]
            texts.append(f"{LENGTHS[length]} ({_kinds_and_types(others)})")
    text = "; ".join(texts)
    if any(rule.reads_sentence_length for rule in applied):
        return f"`max_seq_length` of sentence-transformers, if a file states it; else {text}"
    return text


def _kinds_and_types(rules: Sequence[Rule]) -> str:
    """Return the positions of rules, and their model types if these are few."""
    kinds = _names(dict.fromkeys(kind for rule in rules for kind in rule.positions))
    types = dict.fromkeys(f"`{name}`" for rule in rules for name in rule.model_types)
    if len(types) > 3:
        return kinds
    return f"{kinds} of {', '.join(types)}"


def _number_of_types(rules: Sequence[Rule], length: Length) -> int:
    return sum(len(rule.model_types) or 1000 for rule in rules if rule.length is length)


# What a runtime does with one model type


def _behaviours(runtime: Runtime, model_type: str) -> dict[str, Behaviour]:
    """Return what a runtime does with each positions that a model type can have; as rules say."""
    found = dict[str, Behaviour]()
    possible = _possible(model_type)
    for rule in _rules_of(runtime):
        if rule.model_types and model_type not in rule.model_types:
            continue
        for positions in rule.positions:
            if positions in possible or not possible:
                found.setdefault(positions, _behaviour(runtime, rule, model_type, positions))
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
        return {SINUSOIDAL, LEARNED}  # stored sinusoids can be trained
    return {LEARNED}


def _behaviour(runtime: Runtime, rule: Rule, model_type: str, positions: str) -> Behaviour:
    evidence = _linked_evidence(rule)
    if rule.effect is not Effect.APPLIES and not rule.option:
        return Behaviour(rule.effect, _cell(rule.reason), "", evidence)
    options = list[str]()
    if rule.option:
        options.append(rule.option.format(**PLACEHOLDERS))
    takes_another = rule.length in (Length.STATED_SCALED, Length.TRAINED_KEY)
    counts_rows = positions == LEARNED and _key_counts_reserved_rows(model_type)
    if takes_another or (rule.length is Length.STATED and counts_rows):
        options.append(runtime.length_option.format(max_len="N"))
    text = f"with `{' '.join(options)}`" if any(options) else ""
    if rule.length is Length.TOKENIZER:
        text = f"with a tokenizer, or `{runtime.length_option.format(max_len='N')}`"
    if counts_rows and not runtime.length_option and rule.reads_sentence_length:
        text = "with the files of sentence-transformers"
    if rule.without_prefix:
        text = f"if names of tensors do not start with `{rule.without_prefix}`"
    if rule.ignores_short_list:
        text = f"{text} (short inputs change)".lstrip()
    return Behaviour(Effect.APPLIES, "", text, evidence)


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


def _groups(runtime: Runtime) -> Iterator[tuple[list[str], tuple[str, str, str]]]:
    """Yield model types that a runtime treats alike, and what it does, as cells of a table."""
    groups = dict[tuple[str, str, str], list[str]]()
    for model_type in dict.fromkeys(
        name for rule in _rules_of(runtime) for name in rule.model_types
    ):
        behaviours = _behaviours(runtime, model_type)
        evidence = dict.fromkeys(behaviour.evidence for behaviour in behaviours.values())
        cells = (_right(behaviours), _not_right(behaviours), ", ".join(evidence))
        groups.setdefault(cells, []).append(model_type)
    for cells, model_types in groups.items():
        yield sorted(model_types), cells


def _right(behaviours: Mapping[str, Behaviour]) -> str:
    found = dict[str, list[str]]()
    for kind, behaviour in behaviours.items():
        if behaviour.effect is Effect.APPLIES:
            found.setdefault(behaviour.options, []).append(kind)
    return "; ".join(f"{_names(found[options])} {options}".rstrip() for options in sorted(found))


def _not_right(behaviours: Mapping[str, Behaviour]) -> str:
    found = dict[Behaviour, list[str]]()
    for kind, behaviour in behaviours.items():
        if behaviour.effect is not Effect.APPLIES:
            found.setdefault(behaviour._replace(evidence=""), []).append(kind)
    parts = list[str]()
    for behaviour, kinds in found.items():
        names = _names(kinds)
        if behaviour.effect is Effect.REFUSES and len(kinds) == len(behaviours):
            names = "all"
        reason = f" ({behaviour.reason})" if behaviour.reason else ""
        parts.append(f"{names}: {EFFECTS[behaviour.effect]}{reason}")
    return "; ".join(parts)


def _names(kinds: Iterable[str]) -> str:
    ordered = sorted(kinds, key=ORDER.index)
    return ", ".join(NAMES.get(kind, f"`{kind}`") for kind in ordered)


def _chosen(runtime: Runtime, model_type: str) -> str:
    """Return what ``--for`` chooses, ``no`` if all that is known is not right, or nothing."""
    behaviours = _behaviours(runtime, model_type)
    known = [behaviours[kind] for kind in CHOSEN_FIRST if kind in behaviours]
    for kind in CHOSEN_FIRST:
        behaviour = behaviours.get(kind)
        if behaviour is not None and behaviour.effect is Effect.APPLIES:
            return f"{_names([kind])}{'*' if behaviour.options else ''}"
    return "no" if known else ""
