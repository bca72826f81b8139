"""What runtimes do with a folder, by the rules."""

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
    RuntimeOutcome,
    RuntimeStatement,
)
from ctxextend.runtimes.runtimes import RUNTIMES

# Positions without rotary settings, or with those of training: any dialect states them.
WITHOUT_SETTINGS = (LEARNED, SINUSOIDAL, ALIBI, RELATIVE, UNSCALED)


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

    length: int | None = _length(rule, facts)
    if rule.effect is Effect.REFUSES:
        length = None
    if rule.effect is not Effect.APPLIES:
        outcome = RuntimeOutcome(rule.effect)
    elif length == facts.max_len:
        outcome = RuntimeOutcome.SERVES
    else:
        outcome = RuntimeOutcome.DERIVES
    reads_settings = not reads_none and length is not None
    return RuntimeStatement(
        runtime=runtime,
        outcome=outcome,
        length=length,
        option=_options(runtime, rule, facts, length),
        reason=rule.reason,
        evidence=rule.evidence,
        ignores_attention_factor=reads_settings and _takes_other_factor(runtime, rule, facts),
        ignores_short_list=reads_settings and rule.ignores_short_list,
    )


def _takes_other_factor(runtime: Runtime, rule: Rule, facts: FolderFacts) -> bool:
    if facts.attention_factor is None:
        return False
    if runtime.reads_list_mscales and facts.list_mscales:
        return any(value != facts.attention_factor for value in facts.list_mscales)
    return rule.ignores_attention_factor or runtime.ignores_attention_factor


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


def _length(rule: Rule, facts: FolderFacts) -> int:
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
