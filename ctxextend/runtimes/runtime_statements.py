"""What runtimes do with a folder, by the rules, and notes on that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from ctxextend.errors import joined
from ctxextend.json_output import not_in_json
from ctxextend.notes import Code, Level, Note
from ctxextend.runtimes.all_rules import RULES
from ctxextend.runtimes.rule_schema import (
    ALIBI,
    LEARNED,
    RELATIVE,
    SINUSOIDAL,
    UNSCALED,
    Effect,
    FolderFacts,
    Length,
    Rule,
    Runtime,
)
from ctxextend.runtimes.runtimes import RUNTIMES

# Positions without rotary settings, or with those of training: any dialect states them.
WITHOUT_SETTINGS = (LEARNED, SINUSOIDAL, ALIBI, RELATIVE, UNSCALED)


class RuntimeOutcome(StrEnum):
    """What a runtime makes of a folder."""

    SERVES = "serves"  # it reads the requested length, and applies the method
    DERIVES = "derives"  # it applies the method, but reads another length without an option
    IGNORES = "ignores"  # it loads the folder without the method
    DIFFERS = "differs"  # it loads the folder, and computes other positions than transformers
    REFUSES = "refuses"


@dataclass(frozen=True, kw_only=True)
class RuntimeStatement:
    """What a runtime does with one folder, by a rule."""

    runtime: Runtime = field(metadata=not_in_json)
    outcome: RuntimeOutcome
    length: int | None  # that it reads without an option, in tokens; None if it refuses
    option: str  # what to add to its command to serve the length right; may be empty
    reason: str  # why it refuses or ignores the positions; may be empty
    evidence: str  # ``run``, or the URL of what was read
    # Whether it ignores an attention factor that the folder states.
    ignores_attention_factor: bool = field(default=False, metadata=not_in_json)
    # Whether short inputs get the frequencies of long ones, although the folder keeps them apart.
    ignores_short_list: bool = False

    json_properties: ClassVar = ("name", "version")

    @property
    def name(self) -> str:
        """The name of the runtime."""
        return self.runtime.name

    @property
    def version(self) -> str:
        """The version that was run or read."""
        return self.runtime.version

    @property
    def serves_with_option(self) -> bool:
        """Whether it reads the requested length right, if need be with its option."""
        return self.outcome is RuntimeOutcome.SERVES or bool(self.option)


def runtime_statements(facts: FolderFacts) -> tuple[RuntimeStatement, ...]:
    """Return what each runtime that has a rule for a folder does with it, in a fixed order."""
    statements = list[RuntimeStatement]()
    for runtime in RUNTIMES:
        for rule in RULES:
            is_same_type = not rule.model_types or facts.model_type in rule.model_types
            if rule.runtime == runtime.key and is_same_type and facts.positions in rule.positions:
                statements.append(_statement(runtime, rule, facts))
                break
    return tuple(statements)


def _statement(runtime: Runtime, rule: Rule, facts: FolderFacts) -> RuntimeStatement:
    dialects = rule.dialects or runtime.dialects
    has_settings = facts.positions not in WITHOUT_SETTINGS
    reads_none = has_settings and set(dialects).isdisjoint(facts.dialects)
    takes_default_betas = bool(runtime.beta_option) and facts.betas is not None
    if reads_none:
        reason = f"it reads {' or '.join(dialects)}, not {' or '.join(facts.dialects)}"
        rule = rule._replace(effect=Effect.IGNORES, option="", reason=reason)
    elif rule.without_prefix and facts.table_name.startswith(rule.without_prefix):
        reason = f"it expects tensor names without {rule.without_prefix[:-1]}"
        rule = rule._replace(effect=Effect.REFUSES, option="", reason=reason)
    elif rule.effect is Effect.APPLIES and takes_default_betas:
        reason = "it takes beta_fast 32 and beta_slow 1"
        rule = rule._replace(effect=Effect.DIFFERS, reason=reason, option=runtime.beta_option)
    elif rule.option and takes_default_betas:
        rule = rule._replace(option=f"{rule.option} {runtime.beta_option}")

    length = _length(rule, facts)
    if rule.effect is not Effect.APPLIES:
        outcome = RuntimeOutcome(rule.effect)
    elif length == facts.max_len:
        outcome = RuntimeOutcome.SERVES
    else:
        outcome = RuntimeOutcome.DERIVES

    reads_settings = not reads_none and length is not None
    has_factor = reads_settings and facts.attention_factor is not None
    ignores_factor = rule.ignores_attention_factor or runtime.ignores_attention_factor
    if runtime.reads_list_mscales and facts.list_mscales:
        ignores_factor = any(value != facts.attention_factor for value in facts.list_mscales)
    return RuntimeStatement(
        runtime=runtime,
        outcome=outcome,
        length=length,
        option=_options(runtime, rule, facts, length),
        reason=rule.reason,
        evidence=rule.evidence,
        ignores_attention_factor=has_factor and ignores_factor,
        ignores_short_list=reads_settings and rule.ignores_short_list,
    )


def _options(runtime: Runtime, rule: Rule, facts: FolderFacts, length: int | None) -> str:
    if rule.effect is not Effect.APPLIES and not rule.option:
        return ""
    options = list[str]()
    if rule.option:
        beta_fast, beta_slow = facts.betas or (0, 0)
        values = {
            "max_len": str(facts.max_len),
            "first_trained": str(facts.first_trained),
            "factor": f"{facts.factor:.15g}",
            "theta": f"{facts.theta or 0:.15g}",
            "beta_fast": f"{beta_fast:.15g}",
            "beta_slow": f"{beta_slow:.15g}",
        }
        options.append(rule.option.format(**values))
    if length != facts.max_len and runtime.length_option:
        options.append(runtime.length_option.format(max_len=facts.max_len))
    return " ".join(options)


def _length(rule: Rule, facts: FolderFacts) -> int | None:
    if rule.effect is Effect.REFUSES:
        return None
    if facts.has_sentence_length and rule.reads_sentence_length:
        return facts.max_len
    match rule.length:
        case Length.SERVED:
            return facts.max_len
        case Length.STATED:
            return facts.stated
        case Length.STATED_SCALED:
            return round(facts.stated * facts.factor)
        case Length.TRAINED_KEY:
            return facts.stated if facts.trained_key is None else facts.trained_key
        case Length.TOKENIZER:
            return facts.max_len if facts.has_tokenizer_length else facts.stated


def engine_notes(
    statements: Sequence[RuntimeStatement], max_len: int, *, can_add_keys: bool = False
) -> Iterator[Note]:
    """Yield which engines read the context length as the output is, and whose outputs differ.

    Those that fail or read less are named only if one is requested.

    Args:
        statements: What engines do with the output, by a rule.
        max_len: The context length, in tokens.
        can_add_keys: As in `difference_notes`.
    """
    names = list[str]()
    for item in statements:
        if item.outcome is RuntimeOutcome.SERVES:
            names.append(item.runtime.name)
    if names:
        yield Note(Code.ENGINE, Level.NOTE, f"Reads {max_len} tokens in {', '.join(names)}.")
    yield from difference_notes(statements, can_add_keys=can_add_keys)


def difference_notes(
    statements: Sequence[RuntimeStatement], *, can_add_keys: bool = False
) -> Iterator[Note]:
    """Yield a warning for engines that read the length, but not all of the settings.

    Args:
        statements: What engines do with the output, by a rule.
        can_add_keys: Whether ``--for`` states the attention factor by other keys, for engines that
            read these.
    """
    right = [item for item in statements if item.serves_with_option]
    ignoring = [item for item in right if item.ignores_attention_factor]
    names = [item.runtime.name for item in ignoring]
    if names:
        ignores = "ignores" if len(names) == 1 else "ignore"
        text = (
            f"The settings state an attention_factor, which {joined(names)} {ignores}: outputs "
            "differ from those of transformers."
        )
        readers = [item for item in ignoring if item.runtime.reads_list_mscales]
        if can_add_keys and readers:
            keys = " or ".join(item.runtime.key for item in readers)
            text += f" --for {keys} states it as that engine reads it."
        yield Note(Code.ENGINE, Level.WARNING, text)
    names = [item.runtime.name for item in right if item.ignores_short_list]
    if names:
        gives = "gives" if len(names) == 1 else "give"
        text = (
            f"{joined(names)} {gives} every input the frequencies of long ones, so the outputs for "
            "short inputs change there."
        )
        yield Note(Code.ENGINE, Level.WARNING, text)
