"""The command to type after a result."""

from dataclasses import replace

import pytest
from ctxextend.lab.evaluation_result import Estimate

from ctxextend import inspect, resize
from ctxextend.report.next_steps import (
    after_evaluation,
    after_inspection,
)
from tests.helpers.evaluations import EXTENDED, WITHOUT_BASE


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
