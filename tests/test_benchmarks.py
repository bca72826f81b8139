"""The frame of the benchmarks: targets, the table, and the exit code; no benchmark of any length is run."""

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ctxextend
from benchmarks import __main__ as every
from benchmarks import sources
from benchmarks.costs import draw
from benchmarks.inspect import bytes_read
from benchmarks.measuring import (
    Cost,
    Row,
    Target,
    alternate,
    at_least,
    at_most,
    less,
    measure,
    more,
    python,
    shown,
    within,
)
from benchmarks.sources import TABLE, XL, Shape, shape_of, write
from benchmarks.table import Record, markdown, record, run_alone, summary
from benchmarks.verify import comparing, speeds, unchanged
from tests.faults.tracing import needs_strace

SMALL = Shape(64, 2, 10, 16)


def row(ours: float, theirs: float, target: Target) -> Row:
    return Row("it", "s", [ours, ours / 2, 9 * ours], "`cp`", [theirs], target)


@pytest.mark.parametrize(
    ("target", "met", "missed", "reached"),
    [
        (less(8), (1.0, 8.0), (1.01, 8.0), 8.0),
        (at_most(1.15), (1.15, 1.0), (1.16, 1.0), 1.15),
        (at_least(1.5), (3.0, 2.0), (2.9, 2.0), 1.5),
        (more(0.5), (1.5, 1.0), (1.6, 1.0), 0.5),
        (within(90.0), (90.0, 1.0), (90.1, 1.0), 90.0),
    ],
    ids=["less", "at_most", "at_least", "more", "within"],
)
def test_row_is_held_to_its_target(
    target: Target, met: tuple[float, float], missed: tuple[float, float], reached: float
) -> None:
    assert row(*met, target).is_met
    assert not row(*missed, target).is_met
    assert math.isclose(row(*met, target).reached, reached)


def test_row_without_a_peer_is_held_to_a_limit_alone() -> None:
    assert Row("memory", "MB", [80.0], "", (), within(90)).reached == 80


def test_alternate_runs_every_route_in_turn() -> None:
    calls: list[str] = []

    def route(name: str) -> Cost:
        calls.append(name)
        return Cost(1.0, 1.0)

    alternate({"a": lambda: route("a"), "b": lambda: route("b")}, 2, before=lambda: calls.append("-"))
    assert calls == ["-", "a", "-", "b", "-", "a", "-", "b"]


def test_measure_of_a_failing_process_says_what_it_said() -> None:
    with pytest.raises(SystemExit, match="no such thing"):
        measure(python("raise ValueError('no such thing')"))


def test_markdown_tells_met_from_missed() -> None:
    lines = list(markdown(map(record, (row(1.0, 10.0, less(8)), row(2.0, 10.0, less(8))))))
    assert (
        lines[-2] == "| it | 1.000 s (0.500 - 9.000) | `cp` | 10.000 s (10.000 - 10.000) | ≥ 8 x less | 10.00 x | met |"
    )
    assert lines[-1].endswith("| 5.00 x | **missed** |")


def test_markdown_leaves_the_peer_out_where_there_is_none() -> None:
    *_, line = markdown([record(Row("memory", "MB", [80.0], "", (), within(90)))])
    assert line == "| memory | 80 MB (80 - 80) |  |  | ≤ 90 MB | 80 MB | met |"


def test_markdown_says_nothing_of_a_row_that_is_only_shown() -> None:
    slow = row(1.0, 10.0, shown())
    assert slow.is_met
    assert list(markdown([record(slow)]))[-1].endswith("| - | 0.10 x |  |")


def test_record_is_json() -> None:
    found = json.loads(json.dumps(record(row(1.0, 10.0, less(8)))))
    assert found["ours"] == {"median": 1.0, "min": 0.5, "max": 9.0, "values": [1.0, 0.5, 9.0]}
    assert found["peer"]["name"] == "`cp`"
    assert found["target"] == {"said": "≥ 8 x less", "limit": 8, "unit": "x"}
    assert (found["reached"], found["is_met"]) == (10.0, True)


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *rows: Row, fails: bool = False) -> int:
    """Run a benchmark as a program, with a file for its rows; return its exit code."""

    def benchmark(_: Path, rounds: int) -> Iterator[Row]:
        yield from rows
        if fails:
            raise SystemExit("failed: cp")

    monkeypatch.setattr(sys, "argv", ["benchmark", "--folder", str(folder), "--json", str(folder / "rows.json")])
    with pytest.raises(SystemExit) as ended:
        run_alone(benchmark, "", 3)
    return int(ended.value.code == "failed: cp" or ended.value.code or 0)


def test_run_alone_exits_1_where_a_row_is_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    met, missed = row(1.0, 10.0, less(8)), row(2.0, 10.0, less(8))
    assert run(monkeypatch, tmp_path, met) == 0
    assert run(monkeypatch, tmp_path, met, missed) == 1


def test_run_alone_keeps_the_rows_of_a_failed_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, row(1.0, 10.0, less(8)), fails=True) == 1
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == 1


PRETENDED = """
from benchmarks.measuring import Row, less
from benchmarks.table import run_alone
def rows(folder, rounds):
    yield Row("it", "s", [1.0] * rounds, "`cp`", [{theirs}], less(8))
    {then}
if __name__ == "__main__":
    run_alone(rows, "", 2)
"""


@pytest.mark.parametrize(
    ("theirs", "then", "is_met", "failed"),
    [
        (10.0, "", True, False),
        (5.0, "", False, False),
        (10.0, "raise ValueError", True, True),
        (5.0, "raise ValueError", False, True),
    ],
    ids=["met", "missed", "failed", "missed and failed"],
)
def test_run_tells_a_missed_row_from_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, theirs: float, then: str, is_met: bool, failed: bool
) -> None:
    (tmp_path / "pretended.py").write_text(PRETENDED.format(theirs=theirs, then=then))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[1]}")
    found = every.run("pretended", ["--folder", str(tmp_path)])
    assert ([one["is_met"] for one in found["rows"]], found["failed"], found["rounds"]) == ([is_met], failed, 2)


def test_run_of_what_cannot_begin_is_a_failure(tmp_path: Path) -> None:
    found = every.run("benchmarks.no_such", ["--folder", str(tmp_path)])
    assert (found["failed"], found["rows"]) == (True, [])


def run_every(monkeypatch: pytest.MonkeyPatch, out: Path, **found: Record) -> tuple[int, str, Record]:
    """Run benchmarks that have found what is given; return the exit code, the page and the JSON."""

    def run_one(module: str, options: object, place: str) -> Record:
        return found[module.removeprefix("benchmarks.")]

    monkeypatch.setattr(every, "run", run_one)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--out", str(out), "--only", *found])
    with pytest.raises(SystemExit) as ended:
        every.main()
    return int(ended.value.code or 0), (out / "table.md").read_text(), json.loads((out / "table.json").read_text())


def outcome(*rows: Row, failed: bool = False) -> Record:
    return {"name": "it", "seconds": 1.0, "failed": failed, "rounds": 3, "rows": [*map(record, rows)]}


def test_main_writes_one_table_and_exits_0_where_all_is_met(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    met = outcome(row(1.0, 10.0, less(8)))
    status, page, found = run_every(monkeypatch, tmp_path / "new" / "out", resize=met, verify=met)
    assert status == 0
    assert page.count("| met |") == 2
    assert list(found) == ["schema_version", "machine", "versions", "benchmarks"]
    assert {"ctxextend", "python", "torch", "transformers", "safetensors", "numpy", "typer"} <= set(found["versions"])
    assert {"CPU", "cores", "kernel"} <= set(found["machine"])
    assert [len(one["rows"]) for one in found["benchmarks"]] == [1, 1]


def test_main_exits_1_where_a_row_is_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    met, missed = outcome(row(1.0, 10.0, less(8))), outcome(row(2.0, 10.0, less(8)))
    status, page, _ = run_every(monkeypatch, tmp_path, resize=missed, verify=met)
    assert (status, page.count("**missed**"), page.count("| met |")) == (1, 1, 1)


def test_main_exits_1_where_a_benchmark_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, page, _ = run_every(monkeypatch, tmp_path, resize=outcome(row(1.0, 10.0, less(8)), failed=True))
    assert status == 1
    assert "**it failed**" in page


@pytest.mark.parametrize("size", [1e7, 1e8, 12e9])
def test_shape_of_has_the_size_asked_for(size: float) -> None:
    assert 0.95 * size <= sum(shape_of(size).sizes().values()) <= size


@pytest.mark.parametrize("size", [100, 10_000_000], ids=["many shards", "one shard"])
def test_comparing_reads_all_but_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int) -> None:
    monkeypatch.setattr(sources, "SHARD_BYTES", size)
    write(tmp_path / "base", SMALL)
    ctxextend.resize(tmp_path / "base", to=32, output=tmp_path / "new")
    measure(comparing(tmp_path / "base", tmp_path / "new"))
    total = sum(
        read
        for file in (tmp_path / "base").glob("*.safetensors")
        for *_, read in unchanged(file, tmp_path / "new" / file.name)
    )
    assert total == sum(SMALL.sizes().values()) - SMALL.sizes()[TABLE]
    last = max((tmp_path / "new").glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-1] + b"\xff")
    with pytest.raises(SystemExit, match="failed: sh"):
        measure(comparing(tmp_path / "base", tmp_path / "new"))
    measure(comparing(tmp_path / "base", tmp_path / "new", 1))


def test_speeds_take_the_median_start_off_every_run() -> None:
    size = (sum(XL.sizes().values()) - XL.sizes()[TABLE]) / 1e6
    assert speeds([2.0, 4.0]) == [size / 2, size / 4]
    assert speeds([2.0, 4.0], [0.1, 9.0, 1.0]) == [size, size / 3]


@needs_strace
def test_bytes_read_counts_what_is_read_and_mapped_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for file in (tmp_path / "in" / "a", tmp_path / "b"):
        file.write_bytes(bytes(5000))
    code = f"""
import mmap, os
for path in ({str(tmp_path / "in" / "a")!r}, {str(tmp_path / "b")!r}):
    file = os.open(path, os.O_RDONLY)
    os.read(file, 1000)
    os.pread(file, 300, 10)
    os.readv(file, [bytearray(20)])
    mmap.mmap(file, 4096, access=mmap.ACCESS_READ)
"""
    assert bytes_read(python(code), tmp_path / "in") == 1000 + 300 + 20 + 4096


def test_draw_leaves_out_what_was_not_measured(tmp_path: Path) -> None:
    def costs(key: str, at: float) -> Record:
        taken = {"seconds": summary([1.0, 2.0]), "megabytes": summary([50.0, 60.0])}
        return {key: at, "promised_megabytes": 90.0, "ctxextend": taken, "cp -r + sync": taken}

    sizes = [costs("gigabytes", 0.5), costs("gigabytes", 1.0), {"gigabytes": 12.0, "left_out": "no room"}]
    found = {"machine": {"CPU": "any"}, "versions": {"ctxextend": "1"}, "sizes": sizes, "rows": [costs("rows", 1000)]}
    draw(found, tmp_path / "costs.svg")
    assert "no room on the disk for 12 GB" in (tmp_path / "costs.svg").read_text()
