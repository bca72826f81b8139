"""Each engine does with a folder what `resize` says, on small models with random weights.

A model of 256 positions is resized to 1,024 and loaded in the engine; its values beyond the old
length are compared with those of transformers. They must be right where `resize` says so, and those
of an unscaled model, or an error, where it says that.
"""

import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ctxextend.runtimes.engines import RUN, Outcome, find_engine
from ctxextend.serving.engine_statements import Statement
from ctxextend.tables.rope_types import ATTENTION_FACTOR, SHORT_LIST
from tests.engines.cases import (
    DEFAULT_BETAS,
    NO_FACTOR,
    UNSCALED,
    Case,
    Prepared,
    has_positions,
    prepare,
)
from tests.engines.environments import ENGINES, Engine, is_selected
from tests.engines.running import RunningEngine

pytestmark = pytest.mark.engines

SELECTED = os.environ.get("ENGINES", "fast")  # see `is_selected`
# What a run must measure where `resize` says the first word.
EXPECTED = {
    Outcome.SERVES: "right",
    Outcome.DERIVES: "right",
    Outcome.IGNORES: UNSCALED,
    Outcome.DIFFERS: "wrong",
    Outcome.REFUSES: "refused",
}
CONVERSIONS = (
    Case("gpt_neox", "theta", converted_from="gpt2"),
    Case("roformer", "sinusoidal", converted_from="bert"),
    Case("falcon", "ALiBi", converted_from="gpt2"),
)
ONE_DIALECT = (
    Case("llama", "yarn", has_one_dialect=True),
    Case("llama", "theta", has_one_dialect=True),
    Case("qwen3", "yarn", has_one_dialect=True),
)


def selected_engines() -> Iterator[Engine]:
    for engine in ENGINES.values():
        if is_selected(engine.name, engine.environment, SELECTED):
            yield engine


def cases_of_rules(engine: Engine) -> Iterator[Case]:
    """Yield the cases of all rules of an engine that were run, ordered by model type."""
    found = set[tuple[str, str]]()
    for rule in find_engine(engine.runtime).rules:
        if rule.has or rule.evidence != RUN:
            continue
        for model_type in rule.types:
            found |= {(model_type, positions) for positions in rule.positions}
    for model_type, positions in sorted(found):
        if not has_positions(model_type, positions):
            continue
        has_prefix = model_type == "gpt2" and engine.runtime == "mlx"
        yield Case(model_type, positions)
        if has_prefix:
            yield Case(model_type, positions, without_head=True)


def all_cases() -> Iterator[tuple[Engine, Case]]:
    for engine in selected_engines():
        for case in (*cases_of_rules(engine), *CONVERSIONS, *ONE_DIALECT):
            yield engine, case


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is removed after each test, since all of them together take gigabytes."""
    with TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, RunningEngine]]:
    """Every selected engine; each is started by its first run."""
    with ExitStack() as stack:
        yield {
            engine.name: stack.enter_context(RunningEngine(engine)) for engine in selected_engines()
        }


@pytest.mark.parametrize(
    ("engine", "case"), list(all_cases()), ids=lambda item: getattr(item, "name", str(item))
)
def test_resize_says_what_an_engine_does(
    engines: dict[str, RunningEngine], engine: Engine, case: Case, folder: Path
) -> None:
    prepared = prepare(case, folder)
    statement = prepared.statements.get(engine.runtime)
    if statement is None:
        pytest.skip("no rule")
    measured = engines[engine.name].run(prepared)
    assert measured.name.startswith(EXPECTED[statement.outcome]), measured
    if measured.name == "right" and prepared.short_reference is not None:
        short = engines[engine.name].run_short(prepared)
        assert short == ("long" if SHORT_LIST in statement.ignores else "right")
    if statement.option and statement.outcome is not Outcome.SERVES:
        check_option(engines[engine.name], prepared, statement)


def check_option(running: RunningEngine, prepared: Prepared, statement: Statement) -> None:
    """Check that the engine is right with the option that `resize` names."""
    measured = running.run(prepared, flags=flags_of(statement.option))
    assert measured.name == "right", measured


def flags_of(option: str) -> dict[str, float]:
    """Return flags of llama-server as arguments of `llama_cpp.Llama`."""
    words = shlex.split(option)
    given = dict(zip(words[::2], words[1::2], strict=True))
    flags = dict[str, float]()
    if "--rope-scaling" in given:
        flags["rope_scaling_type"] = {"linear": 1, "yarn": 2}[given["--rope-scaling"]]
        flags["rope_freq_scale"] = 1 / float(given["--rope-scale"])
    if "--yarn-orig-ctx" in given:
        flags["yarn_orig_ctx"] = int(given["--yarn-orig-ctx"])
    if "--yarn-beta-fast" in given:
        flags["yarn_beta_fast"] = float(given["--yarn-beta-fast"])
        flags["yarn_beta_slow"] = float(given["--yarn-beta-slow"])
    if "--rope-freq-base" in given:
        flags["rope_freq_base"] = float(given["--rope-freq-base"])
    return flags


@pytest.mark.parametrize("engine", list(selected_engines()), ids=lambda engine: engine.name)
def test_resize_says_which_engines_ignore_an_attention_factor(
    engines: dict[str, RunningEngine], engine: Engine, folder: Path
) -> None:
    case = Case("llama", "yarn", attention_factor=True)
    prepared = prepare(case, folder)
    statement = prepared.statements[engine.runtime]
    measured = engines[engine.name].run(prepared)
    expected = EXPECTED[statement.outcome]
    if ATTENTION_FACTOR in statement.ignores and expected == "right":
        expected = NO_FACTOR
    assert measured.name == expected, measured


@pytest.mark.parametrize("engine", list(selected_engines()), ids=lambda engine: engine.name)
def test_resize_says_which_engines_take_default_betas(
    engines: dict[str, RunningEngine], engine: Engine, folder: Path
) -> None:
    case = Case("llama", "yarn", betas=True)
    prepared = prepare(case, folder)
    statement = prepared.statements[engine.runtime]
    measured = engines[engine.name].run(prepared)
    expected = EXPECTED[statement.outcome]
    if statement.outcome is Outcome.DIFFERS:
        expected = DEFAULT_BETAS
        check_option(engines[engine.name], prepared, statement)
    assert measured.name == expected, measured
