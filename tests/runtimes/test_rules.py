"""The rules about runtimes are complete and do not contradict each other."""

from collections import Counter

import pytest
from ctxextend.runtimes.all_rules import RULES
from ctxextend.runtimes.rule_schema import ROPE_PARAMETERS, ROPE_SCALING, RUN, Effect, Rule
from ctxextend.runtimes.runtimes import RUNTIME_KEYS, RUNTIMES

from ctxextend.families.registry import FAMILIES
from ctxextend.runtimes import rule_schema as schema

POSITIONS = {
    schema.LEARNED,
    schema.SINUSOIDAL,
    schema.ALIBI,
    schema.RELATIVE,
    schema.UNSCALED,
    schema.RAISED_THETA,
    schema.PROPORTIONAL,
    schema.NTK_ALPHA,
    schema.SWITCHED,
    schema.REMOVED,
    *schema.COMMON_ROPE_TYPES,
}
OPTION_VALUES = {"factor": "4", "first_trained": "256", "theta": "500000", "max_len": "1024"}


def name_of(rule: Rule) -> str:
    return f"{rule.runtime}-{rule.positions[0]}-{'-'.join(rule.model_types[:1])}"


every_rule = pytest.mark.parametrize("rule", RULES, ids=name_of)


def test_rules_has_at_most_one_rule_per_runtime_type_and_positions() -> None:
    counts = Counter[tuple[str, str, str]]()
    for rule in RULES:
        for model_type in rule.model_types or FAMILIES:
            for positions in rule.positions:
                counts[rule.runtime, model_type, positions] += 1
    assert [key for key, count in counts.items() if count > 1] == []


@every_rule
def test_rules_are_about_known_runtimes_types_and_positions(rule: Rule) -> None:
    assert rule.runtime in RUNTIME_KEYS
    assert {*rule.positions} <= POSITIONS
    assert {*rule.model_types} <= FAMILIES.keys()
    assert {*rule.dialects} <= {ROPE_PARAMETERS, ROPE_SCALING}


@every_rule
def test_rules_have_evidence(rule: Rule) -> None:
    is_run = rule.evidence == RUN or rule.evidence.startswith(f"{RUN}: ")
    assert is_run or rule.evidence.startswith("https://")


@every_rule
def test_rules_give_a_reason_and_an_option_only_where_they_are_shown(rule: Rule) -> None:
    if rule.effect is Effect.REFUSES:
        assert rule.reason
        assert not rule.option
    if rule.effect is Effect.APPLIES:
        assert not rule.reason
    assert not rule.reason.endswith(".")
    rule.option.format(**OPTION_VALUES)


@pytest.mark.parametrize("key", RUNTIME_KEYS)
def test_every_runtime_has_rules(key: str) -> None:
    assert any(rule.runtime == key for rule in RULES)


def test_runtimes_have_unique_names_and_a_version() -> None:
    assert len({runtime.key for runtime in RUNTIMES}) == len(RUNTIMES)
    assert len({runtime.name for runtime in RUNTIMES}) == len(RUNTIMES)
    for runtime in RUNTIMES:
        assert any(character.isdigit() for character in runtime.version)
        assert {*runtime.dialects} <= {ROPE_PARAMETERS, ROPE_SCALING}
