"""The public API: signatures, keyword arguments, and equality, repr and JSON of results."""

import ast
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ctxextend
from ctxextend.json_output import Result
from tests.helpers import stubs
from tests.helpers.evaluations import WORSE
from tests.helpers.trainings import write_book

UNTYPED: Any = ctxextend  # for arguments that type checkers reject


def test_stub_is_up_to_date() -> None:
    def exported(text: str) -> tuple[set[str], list[str]]:
        """Return the imported names, and all other statements."""
        names = set[str]()
        others: list[str] = []
        for node in ast.parse(text).body:
            if isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            else:
                others.append(ast.dump(node))
        return names, others

    assert exported(stubs.STUB.read_text()) == exported(stubs.stub()), stubs.__doc__


@pytest.mark.parametrize(
    "call",
    [
        lambda unknown: ctxextend.resize("tiny-gpt2", 256, **unknown),
        lambda unknown: ctxextend.train("tiny-gpt2", "book.txt", 1, **unknown),
        lambda unknown: ctxextend.extend_model(torch.nn.Linear(2, 2), 256, **unknown),
    ],
)
def test_unknown_keyword_raises_type_error(call: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'lenght'"):
        call({"lenght": 3})


def test_dir_lists_the_public_names_only() -> None:
    names = dir(ctxextend)
    assert names == sorted(ctxextend.__all__)
    for name in names:
        assert re.fullmatch(r"[A-Za-z]\w*|__version__", name)
        value = getattr(ctxextend, name)
        assert isinstance(value, str) or value.__doc__


def test_errors_can_be_pickled() -> None:
    with pytest.raises(ctxextend.ResizeError) as caught:
        ctxextend.resize("tiny-gpt2", to=512, method="linear", keep_first=256)
    error = caught.value
    left = "none of the 128 learned positions is left as a source."
    assert error.message == f"--keep-first 256 with --method linear: {left}"
    assert error.hint == "Use --keep-first 64."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: UNTYPED.train("m", "t", 1, lr="x"), "--lr must be a number, got x."),
        (lambda: UNTYPED.train("m", ["t", 5], 1), "--data must be text or a path, got 5."),
        (lambda: UNTYPED.verify(["m"]), "MODEL must be text or a path, got ['m']."),
    ],
)
def test_values_of_wrong_types_name_the_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ctxextend.CtxextendError) as caught:
        call()
    assert message in caught.value.message


def test_settings_with_several_values_accept_a_single_one() -> None:
    write_book()
    single = ctxextend.evaluate("tiny-gpt2", "book.txt", measure="context", length=64, tokens=512)
    several = ctxextend.evaluate(
        "tiny-gpt2", "book.txt", measure=["context"], length=[64], tokens=512
    )
    no_time = {"seconds": 0}
    assert [score.length for score in single.scores] == [64]
    assert single.to_json() | no_time == several.to_json() | no_time

    of_method = ctxextend.evaluate(
        "tiny-gpt2", "book.txt", to=160, method="copy", measure="position", tokens=512
    )
    assert of_method.order == ["copy"]


def test_results_have_one_line_reprs_and_json_values(tmp_path: Path) -> None:
    write_book()
    resized = ctxextend.resize("tiny-gpt2", 256, output="longer")
    trained = ctxextend.train("longer", "book.txt", 1, batch_size=1, output="trained")
    inspected = ctxextend.inspect("longer")
    verified = ctxextend.verify("longer")
    Path("recipe.yaml").write_text("source: tiny-gpt2\nresize: {to: 160}\n")
    done = ctxextend.run("recipe.yaml")
    results: list[Result] = [
        resized.plan,
        resized,
        trained,
        inspected,
        inspected.tables[0],
        WORSE,
        verified,
        done,
    ]
    for result in results:
        text = repr(result)
        assert text.startswith(f"{type(result).__name__}(")
        assert len(text) <= 160
        assert "\n" not in text
        values = result.to_json()
        has_notes = result is resized
        assert ("warnings" in values) != has_notes
        assert len(values) > 3
        json.dumps(values, allow_nan=False)
    expected = "Plan(model_type='gpt2', method='bands', max_len_before=128, max_len_after=256)"
    assert repr(resized.plan) == expected
    assert trained.to_json()["loss_after"] == trained.loss_after
