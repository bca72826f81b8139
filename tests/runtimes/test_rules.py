"""The rules about engines are complete and do not contradict each other."""

import string

import pytest

from ctxextend.families.registry import FAMILIES
from ctxextend.runtimes.engines import BETAS, ENGINES, ONLY_ROPE_PARAMETERS, RUN, Engine, Outcome

POSITIONS = {
    *("learned", "sinusoidal", "ALiBi", "relative", "unscaled", "theta", "yarn", "linear"),
    *("dynamic", "longrope", "llama3", "switch", "proportional", "none"),
}
HAS = {ONLY_ROPE_PARAMETERS, BETAS, "transformer.", *ENGINES}
IGNORES = {"attention_factor", "short_factor"}
LENGTHS = {"stated", "scaled", "trained", "sentence", "tokenizer"}
VALUES = {"max_len", "first_trained", "factor", "theta", "beta_fast", "beta_slow"}

every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.key)


@every_engine
def test_every_rule_says_something(engine: Engine) -> None:
    said = set[tuple[frozenset[str], str, str]]()
    assert engine.rules
    for rule in engine.rules:
        cases = {
            (rule.has, model_type, positions)
            for model_type in rule.types or [""]
            for positions in rule.positions or [""]
        }
        assert cases - said, rule
        said |= cases


@every_engine
def test_rules_are_about_known_types_positions_and_values(engine: Engine) -> None:
    for rule in engine.rules:
        assert {*rule.positions} <= POSITIONS
        assert engine.key in rule.has or {*rule.types} <= FAMILIES.keys()
        assert rule.has <= HAS
        assert {*rule.length} <= LENGTHS
        assert {*rule.ignores} <= IGNORES
        assert {*rule.options} <= engine.options.keys()
        assert rule.outcome is not Outcome.DERIVES
    for option in engine.options.values():
        assert {name for _, name, _, _ in string.Formatter().parse(option) if name} <= VALUES


@every_engine
def test_rules_have_evidence_and_reasons(engine: Engine) -> None:
    assert any(character.isdigit() for character in engine.version)
    for rule in engine.rules:
        is_run = rule.evidence == RUN or rule.evidence.startswith(f"{RUN}: ")
        assert is_run or rule.evidence.startswith("https://")
        if rule.outcome is Outcome.REFUSES:
            assert rule.reason
            assert not rule.options
        if rule.outcome is Outcome.SERVES:
            assert not rule.reason
        assert not rule.reason.endswith(".")
