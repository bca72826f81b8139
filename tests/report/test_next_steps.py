"""The command to type after a result."""

import os
import sys
from dataclasses import replace

import pytest

import ctxextend
from ctxextend import inspect, resize
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.report.next_steps import (
    after_evaluation,
    after_inspection,
    after_verification,
)
from tests.helpers.evaluations import EXTENDED, WITHOUT_BASE
from tests.helpers.terminal import on_terminal

COMMAND = [sys.executable, "-m", "ctxextend"]


@pytest.mark.parametrize(
    ("mean", "command"),
    [
        (-0.5, "ctxextend verify {0} --deep"),
        (0.5, "ctxextend train {0} --data a.txt --steps 200"),
        (0.0, "ctxextend train {0} --data a.txt --steps 200"),
    ],
)
def test_after_evaluation_depends_on_whether_a_longer_context_helps(
    mean: float, command: str
) -> None:
    assert EXTENDED.contexts is not None
    *first, last = EXTENDED.contexts.points
    last = replace(last, change=Estimate(mean, 0.01, 4096, 32))
    contexts = replace(EXTENDED.contexts, points=(*first, last))
    found = replace(EXTENDED, contexts=contexts)
    assert after_evaluation(found, ["a.txt"]) == command.format(EXTENDED.source)
    source = WITHOUT_BASE.source
    assert after_evaluation(WITHOUT_BASE) == f"ctxextend inspect {source}"


def test_after_inspection_trains_new_rows_and_resizes_others() -> None:
    assert after_inspection([inspect("tiny-gpt2")]) == "ctxextend resize tiny-gpt2 --to 2x"
    longer = resize("tiny-gpt2", 256, output="it's longer").output
    (config,) = longer.glob("config.json")
    command = "ctxextend train 'it'\"'\"'s longer' --data TEXT --steps 200"
    assert after_inspection([inspect("tiny-gpt2"), inspect(longer)]) == command
    config.write_text(config.read_text("utf-8").replace("256", "128"), "utf-8")
    assert "--fix-limits" in after_inspection([inspect(longer)])


def test_after_verification_measures_or_shows() -> None:
    assert after_verification("out", passed=True) == "ctxextend evaluate out --data TEXT"
    assert after_verification("out", passed=False) == "ctxextend inspect out"
    assert after_verification(__file__, passed=True) == f"ctxextend inspect {__file__}"


@pytest.mark.slow
def test_screens_end_with_the_next_command_on_a_terminal() -> None:
    ctxextend.resize("tiny-gpt2", 256, output="longer")
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    for name, command in (
        ("inspect", "ctxextend train longer --data TEXT --steps 200"),
        ("verify", "ctxextend evaluate longer --data TEXT"),
    ):
        shown = on_terminal([*COMMAND, name, "longer"], environment)
        assert shown.splitlines()[-2:] == ["Next:", f"  {command}"]
    methods = ["--method", "copy", "--method", "bands"]
    compare = ["compare", "tiny-gpt2", "--to", "2x", "--tokens", "512", *methods]
    shown = on_terminal([*COMMAND, *compare], environment)
    title, command = shown.splitlines()[-2:]
    assert title == "Next:"
    assert command.startswith("  ctxextend resize tiny-gpt2 --to 256 ")
    assert shown.count("Next:") == 1
