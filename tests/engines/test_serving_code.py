"""vLLM and SGLang derive the lengths and compute the angles that `resize` says.

Their own code runs without a GPU, up to a model without weights; attention is not run.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ctxextend import resize
from ctxextend.families.registry import find_architecture
from ctxextend.opening.opened_model import open_model
from ctxextend.positions.rotary import Rotary
from ctxextend.positions.rotary_settings import rotary_dim
from ctxextend.runtimes.engines import RUN, SWITCHED, Outcome, find_engine
from ctxextend.serving.engine_statements import Statement
from ctxextend.settings import CheckpointRef
from ctxextend.tables.frequencies import frequencies
from ctxextend.tables.rope_types import ATTENTION_FACTOR, SHORT_LIST
from tests.engines.cases import Case, has_positions, make_folder, read_config
from tests.engines.environments import SERVING_ENGINES, Engine, is_selected, python_of
from tests.engines.models import NEW, OLD
from tests.helpers import mistral_format

pytestmark = pytest.mark.engines

SELECTED = os.environ.get("ENGINES", "fast")
DRIVERS = Path(__file__).parent / "drivers"
# Names in requests and results of a driver.
LENGTH_OPTION = {"vllm": "max_model_len", "sglang": "context_length"}
WRONG_BY = 0.01  # cosines and sines of an unscaled model differ by more


def selected_engines() -> list[Engine]:
    return [
        engine
        for engine in SERVING_ENGINES.values()
        if is_selected(engine.name, engine.environment, SELECTED)
    ]


def cases_of_rules() -> Iterator[tuple[str, Case]]:
    for engine in selected_engines():
        found = set[tuple[str, str]]()
        for rule in find_engine(engine.runtime).rules:
            if rule.evidence.startswith(RUN):
                for model_type in rule.types:
                    found |= {(model_type, positions) for positions in rule.positions}
        for model_type, positions in sorted(found):
            if has_positions(model_type, positions):
                list_mscales = positions == SWITCHED
                yield engine.name, Case(model_type, positions, list_mscales=list_mscales)


CASES = list(cases_of_rules())


class Run:
    """What an engine did with the folder of a case."""

    def __init__(self, folder: Path, statement: Statement, result: dict[str, Any]) -> None:
        self.folder = folder
        self.statement = statement
        self.result = result

    @property
    def error(self) -> str:
        """The error of the engine; empty if it had none."""
        return str(self.result.get("error") or self.result.get("model_error") or "")


@cache
def runs(name: str) -> dict[Case, Run]:
    """Run an engine once on the folders of all its cases, without those that fail."""
    engine = SERVING_ENGINES[name]
    root = Path(mkdtemp(prefix=f"serving-{name}-"))
    folders = dict[Case, tuple[Path, Statement]]()
    for number, (engine_name, case) in enumerate(CASES):
        if engine_name != name:
            continue
        folder = root / str(number)
        folder.mkdir()
        try:
            result = make_folder(case, folder)
        except Exception:
            continue
        finally:
            _remove_weights(folder)
        for statement in result.planned.runtimes:
            if statement.engine.key == engine.runtime:
                folders[case] = (folder / "output", statement)
    requests = [_request(engine, folder, item) for folder, item in folders.values()]
    answers = run_driver(engine, requests, root)
    found = dict[Case, Run]()
    for (case, (folder, statement)), answer in zip(folders.items(), answers, strict=True):
        found[case] = Run(folder, statement, answer)
    return found


def run_driver(
    engine: Engine, requests: Sequence[Mapping[str, Any]], root: Path
) -> list[dict[str, Any]]:
    """Run the driver of an engine in a folder, and return its results."""
    (root / "requests.json").write_text(json.dumps(requests))
    driver = DRIVERS / engine.driver
    command = [python_of(engine.environment), driver, root / "requests.json", root / "results.json"]
    subprocess.run(command, check=True, cwd=root, capture_output=True)
    results: list[dict[str, Any]] = json.loads((root / "results.json").read_text())
    return results


def _remove_weights(folder: Path) -> None:
    """Remove what the engines do not read, since all folders together take tens of gigabytes."""
    for path in folder.rglob("*.safetensors"):
        path.unlink()


def _request(engine: Engine, folder: Path, statement: Statement) -> dict[str, Any]:
    """Return a request with the option that `resize` names."""
    request: dict[str, Any] = {"folder": str(folder), "tables": f"{folder}.npz"}
    if statement.length != NEW and statement.option:
        request[LENGTH_OPTION[engine.name]] = NEW
    return request


@pytest.mark.parametrize(("name", "case"), CASES, ids=str)
def test_resize_says_what_serving_code_does(name: str, case: Case) -> None:
    run = runs(name).get(case)
    if run is None:
        pytest.skip("no small model of this type")
    if run.statement.outcome is Outcome.REFUSES:
        assert run.error or has_short_table(run), run.result
        return
    assert "error" not in run.result, run.result["error"]
    length = run.result[LENGTH_OPTION[name]]
    assert length == (NEW if run.statement.option else run.statement.length)
    is_right = run.statement.is_right
    # Tables of dynamic settings that are right for the longest inputs are wrong for others. Those
    # of switched ones that are ignored are right for short inputs.
    is_long = is_right or case.positions == SWITCHED
    differences = angle_differences(run, length=NEW if is_long else OLD)
    if is_right:
        tolerance = SERVING_ENGINES[name].tolerance
        assert all(value <= tolerance for value in differences.values()), differences
        if case.positions == SWITCHED:
            check_short_tables(run, tolerance)
    else:
        assert any(value > WRONG_BY for value in differences.values()), differences


@pytest.mark.parametrize("engine", selected_engines(), ids=lambda engine: engine.name)
def test_serving_code_reads_betas(engine: Engine, tmp_path: Path) -> None:
    result = make_folder(Case("llama", "yarn", betas=True), tmp_path)
    _remove_weights(tmp_path)
    for statement in result.planned.runtimes:
        if statement.engine.key == engine.runtime:
            assert statement.outcome is Outcome.SERVES
            folder = tmp_path / "output"
            (answer,) = run_driver(engine, [_request(engine, folder, statement)], tmp_path)
            differences = angle_differences(Run(folder, statement, answer), length=NEW)
            assert all(value <= engine.tolerance for value in differences.values()), differences


@pytest.mark.parametrize("engine", selected_engines(), ids=lambda engine: engine.name)
def test_resize_says_which_serving_code_ignores_the_attention_factor_of_switch(
    engine: Engine, tmp_path: Path
) -> None:
    case = Case("llama", SWITCHED)
    result = make_folder(case, tmp_path)
    found = {item.engine.key: item for item in result.planned.runtimes}
    statement = found[engine.runtime]
    assert ATTENTION_FACTOR in statement.ignores
    folder = tmp_path / "output"
    (answer,) = run_driver(engine, [_request(engine, folder, statement)], tmp_path)
    differences = angle_differences(Run(folder, statement, answer))
    assert min(differences.values()) > WRONG_BY


def test_vllm_reads_flags_next_to_params_json(tmp_path: Path) -> None:
    engine = SERVING_ENGINES["vllm"]
    if not is_selected(engine.name, engine.environment, SELECTED):
        pytest.skip("vLLM is not selected")
    source = mistral_format.make("both")
    requests = list[dict[str, Any]]()
    for method in ("yarn", "theta", "limits"):
        output = tmp_path / method
        resize(source, NEW, method=method, output=output)
        requests.append({"folder": str(output), "tables": f"{output}.npz"})
    for result in run_driver(engine, requests, tmp_path):
        assert "error" not in result, result["error"]
        assert result["max_model_len"] == NEW, result
        config = open_model(CheckpointRef(result["folder"])).checkpoint.config
        (expected,) = expected_tables(config, NEW)
        with np.load(result["tables"]) as tables:
            used = used_tables(list(tables))
            assert used
            assert all(_difference(tables[item], expected) <= engine.tolerance for item in used)


def has_short_table(run: Run) -> bool:
    """Whether a rotary table ends before the new length."""
    return any(item["rows"] <= OLD for item in run.result.get("rotary", {}).values())


def angle_differences(run: Run, length: int = NEW) -> dict[str, float]:
    """Return how far each rotary table is from the nearest one of transformers.

    Args:
        run: The run.
        length: That of an input, in tokens.
    """
    path = Path(f"{run.folder}.npz")
    if not path.exists():
        return {}
    expected = expected_tables(read_config(run.folder), length)
    differences = dict[str, float]()
    with np.load(path) as tables:
        for name in used_tables(list(tables)):
            table = tables[name]
            near = [_difference(table, other) for other in expected]
            if near:
                differences[name] = min(near)
    return differences


def check_short_tables(run: Run, tolerance: float) -> None:
    """Check that an engine has tables for short inputs if `resize` says that it applies them."""
    expected = [table[:OLD] for table in expected_tables(read_config(run.folder), OLD)]
    with np.load(f"{run.folder}.npz") as tables:
        names = [name for name in tables if "short_" in name]
        assert bool(names) is (SHORT_LIST not in run.statement.ignores)
        for name in names:
            assert min(_difference(tables[name], other) for other in expected) <= tolerance


def used_tables(names: list[str]) -> list[str]:
    """Return the names of tables that text reads here: long ones, and those of a whole model."""
    of_model = [name for name in names if name.endswith("inv_freq")]
    return [name for name in of_model or names if "vis" not in name and "short_" not in name]


def _difference(table: NDArray[Any], expected: NDArray[Any]) -> float:
    if table.shape[1] != expected.shape[1] or len(table) < len(expected):
        return float("inf")
    return float(np.abs(table[: len(expected)] - expected).max())


def expected_tables(config: Mapping[str, Any], length: int) -> list[NDArray[np.float64]]:
    """Return cosines and sines of all layer types in an input, shape (tokens, 2 * pairs)."""
    tables = list[NDArray[np.float64]]()
    for location in find_architecture(config).locations:
        if not isinstance(location, Rotary) or not location.methods:
            continue
        for layers in location.layers:
            dim = rotary_dim(location, layers.parameters)
            stated = location.value(location.effective_key)
            found = frequencies(layers.parameters, dim, max_len=stated, length=length)
            angles = np.outer(np.arange(NEW), found.inverse)
            both = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
            tables.append(both * found.attention_factor)
    return tables
