"""What the library promises to editors and to code: signatures, and results that are compared, shown and stored."""

import ast
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ctxextend
from ctxextend.json_output import Result
from tests import stubs
from tests.comparisons import comparison
from tests.evaluations import EXTENDED
from tests.trainings import write_book


def test_stub_shows_every_public_name_and_keyword() -> None:
    def exported(text: str) -> tuple[set[str], list[str]]:
        """Names that are imported, however they are grouped, and all else."""
        tree = ast.parse(text)
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        names = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
        return names, [ast.dump(node) for node in tree.body if not isinstance(node, ast.ImportFrom)]

    assert exported(stubs.STUB.read_text()) == exported(stubs.stub()), stubs.__doc__


@pytest.mark.parametrize(
    "call",
    [
        lambda wrong: ctxextend.resize("tiny-gpt2", 256, **wrong),
        lambda wrong: ctxextend.plan_resize("tiny-gpt2", 256, **wrong),
        lambda wrong: ctxextend.inspect("tiny-gpt2", **wrong),
        lambda wrong: ctxextend.verify("tiny-gpt2", **wrong),
        lambda wrong: ctxextend.evaluate("tiny-gpt2", "book.txt", **wrong),
        lambda wrong: ctxextend.compare("tiny-gpt2", 256, "book.txt", **wrong),
        lambda wrong: ctxextend.calibrate("tiny-gpt2", 256, "book.txt", **wrong),
        lambda wrong: ctxextend.train("tiny-gpt2", "book.txt", 1, **wrong),
        lambda wrong: ctxextend.run("ctxextend.yaml", **wrong),
        lambda wrong: ctxextend.extend_model(torch.nn.Linear(2, 2), 256, **wrong),
    ],
)
def test_wrong_keyword_is_a_type_error_with_its_name(call: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(TypeError, match=r"^\w+\(\) got an unexpected keyword argument 'lenght'"):
        call({"lenght": 3})


@pytest.mark.parametrize(
    "name", ["save", "base", "dtype", "eval_every", "save_every", "report_to", "copy_code", "no_base"]
)
def test_compare_takes_no_keyword_that_its_trainings_do_not_follow(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^compare\(\) got an unexpected keyword argument '{name}'"):
        ctxextend.compare("tiny-gpt2", 256, "book.txt", steps=2, **{name: "best"})  # type: ignore[arg-type]


def test_single_values_are_taken_where_settings_hold_several() -> None:
    write_book()
    found = ctxextend.evaluate("tiny-gpt2", "book.txt", measure="context", length=64, tokens=512)
    several = ctxextend.evaluate("tiny-gpt2", "book.txt", measure=["context"], length=[64], tokens=512)
    assert found.contexts is not None
    assert found == several
    compared = ctxextend.compare("tiny-gpt2", 160, "book.txt", methods="copy", measure="position", tokens=512)
    assert [row.method for row in compared.rows] == ["copy"]


def test_results_are_equal_where_what_they_say_is() -> None:
    plans = [ctxextend.plan_resize("tiny-gpt2", to) for to in (256, 256, 512)]
    inspected = [ctxextend.inspect("tiny-gpt2") for _ in range(2)]
    written = [plans[0].execute("longer", force=True) for _ in range(2)]
    assert plans[0] == plans[1] != plans[2]
    assert inspected[0] == inspected[1] != ctxextend.inspect("longer")
    assert inspected[0].tables == inspected[1].tables != ctxextend.inspect("longer").tables
    assert written[0] == written[1] == replace(written[0], seconds=99.0) != replace(written[0], warnings=("new",))
    assert ctxextend.verify("longer") == ctxextend.verify("longer")
    assert EXTENDED == replace(EXTENDED, seconds=99.0) != replace(EXTENDED, seed=99)
    assert comparison() == comparison() != replace(comparison(), seed=99)
    assert comparison() != EXTENDED


def test_results_are_shown_on_one_line_and_give_plain_values(tmp_path: Path) -> None:
    write_book()
    resized = ctxextend.resize("tiny-gpt2", 256, output="longer")
    trained = ctxextend.train("longer", "book.txt", 1, batch_size=1, output="trained")
    inspected = ctxextend.inspect("longer")
    calibrated = ctxextend.calibrate("tiny-gpt2", 136, "book.txt", tokens=1088, method="bands:sigma=2,repeat=2:60")
    Path("recipe.yaml").write_text("source: tiny-gpt2\nresize: {to: 160}\n")
    results: list[Result] = [resized.plan, resized, trained, inspected, inspected.tables[0], EXTENDED, comparison()]
    results += [ctxextend.verify("longer"), calibrated, ctxextend.run("recipe.yaml")]
    for found in results:
        shown = repr(found)
        assert shown.startswith(f"{type(found).__name__}(")
        assert len(shown) <= 160
        assert "\n" not in shown
        values = found.to_json()
        assert next(iter(values)) == "warnings"
        assert len(values) > 3
        json.dumps(values, allow_nan=False)
    assert repr(resized.plan) == "ResizePlan(model_type='gpt2', method='copy', max_len_before=128, max_len_after=256)"
    assert trained.to_json()["loss_after"] == trained.loss_after
