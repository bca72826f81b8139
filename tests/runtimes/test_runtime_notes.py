"""What `resize` says about engines."""

from typing import Any

from ctxextend.notes import Code, Level, Note
from ctxextend.runtimes.runtime_statements import (
    RuntimeOutcome,
    RuntimeStatement,
    difference_notes,
    engine_notes,
)
from ctxextend.runtimes.runtimes import find_runtime

FLAGS = "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 256"


def statement(
    key: str, outcome: RuntimeOutcome = RuntimeOutcome.SERVES, **values: Any
) -> RuntimeStatement:
    fields = {"length": 1024, "option": "", "reason": "", "evidence": "run", **values}
    return RuntimeStatement(runtime=find_runtime(key), outcome=outcome, **fields)


def test_engine_notes_name_those_that_read_the_length() -> None:
    statements = [
        statement("transformers"),
        statement("vllm"),
        statement("tei", RuntimeOutcome.DERIVES, length=1026),
        statement("mlx", RuntimeOutcome.IGNORES),
        statement("llama.cpp", RuntimeOutcome.IGNORES, option=FLAGS),
        statement("sglang", RuntimeOutcome.DIFFERS, reason="it reads another base"),
        statement("ctranslate2", RuntimeOutcome.REFUSES, length=None, reason="not yet implemented"),
    ]
    assert [*engine_notes(statements, 1024)] == [
        Note(Code.ENGINE, Level.NOTE, "Reads 1024 tokens in transformers, vLLM.")
    ]
    assert [*engine_notes([], 1024)] == []


def test_difference_notes_name_only_engines_that_read_the_rest() -> None:
    statements = [
        statement("transformers"),
        statement("sglang", ignores_attention_factor=True),
        statement("llama.cpp", RuntimeOutcome.IGNORES, option=FLAGS, ignores_attention_factor=True),
        statement("mlx", RuntimeOutcome.IGNORES, ignores_attention_factor=True),
    ]
    (note,) = difference_notes(statements)
    assert note.level == "warning"
    assert note.text == (
        "The settings state an attention_factor, which SGLang and llama.cpp ignore: outputs differ "
        "from those of transformers."
    )
    (one,) = difference_notes(statements[:2])
    assert "which SGLang ignores:" in one.text
    assert not [*difference_notes(statements[:1])]


def test_difference_notes_say_who_gives_short_inputs_the_frequencies_of_long_ones() -> None:
    (note,) = difference_notes([statement("vllm", ignores_short_list=True)])
    assert note.text == (
        "vLLM gives every input the frequencies of long ones, so the outputs for short inputs "
        "change there."
    )
