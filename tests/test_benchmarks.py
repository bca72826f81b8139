"""The frame of the benchmarks: ratios, the table, and the exit code; no benchmark of any length is run."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ctxextend
from benchmarks import __main__ as benchmarks
from benchmarks import checkpoints
from benchmarks.checkpoints import TABLE, Shape, write
from benchmarks.files import cmp_command, header_of
from benchmarks.measure import Cost, Row, alternate, measure, measure_json, python

TINY = Shape(64, 2, 10, 16)


@pytest.mark.parametrize(
    ("ours", "most", "least", "is_met"),
    [(1.0, 0.5, None, True), (1.1, 0.5, None, False), (3.0, None, 1.5, True), (2.9, None, 1.5, False)],
)
def test_row_holds_the_ratio_of_medians_to_its_limits(
    ours: float, most: float | None, least: float | None, is_met: bool
) -> None:
    row = Row("it", "s", [ours, ours / 2, 9 * ours], "`cp`", [2.0], most, least)
    assert row.ratio == ours / 2
    assert row.is_met == is_met
    assert json.loads(json.dumps(row.to_json()))["is_met"] == is_met


def test_alternate_runs_all_routes_in_turn() -> None:
    calls: list[str] = []

    def route(name: str) -> Callable[[], Cost]:
        def run() -> Cost:
            calls.append(name)
            return Cost(len(calls), 1.0)

        return run

    costs = alternate({"a": route("a"), "b": route("b")}, 2, before=lambda: calls.append("-"))
    assert calls == ["-", "a", "-", "b", "-", "a", "-", "b"]
    assert [[cost.seconds for cost in one] for one in costs] == [[2, 6], [4, 8]]


def test_measure_reports_peak_memory_and_what_was_printed() -> None:
    code = "import json; held = b'x' * 100_000_000; print(json.dumps({'a': len(held)}))"
    cost, said = measure_json(python(code))
    assert said == {"a": 100_000_000}
    assert cost.megabytes > 100


def test_measure_of_a_failing_process_ends_with_what_it_said() -> None:
    with pytest.raises(SystemExit, match="no such thing"):
        measure(python("raise ValueError('no such thing')"))


def run_main(monkeypatch: pytest.MonkeyPatch, out: Path, *rows: Row, fails: bool = False) -> tuple[int, str]:
    def found(folder: Path, rounds: int) -> Iterator[Row]:
        yield from rows
        if fails:
            raise SystemExit("failed: cp")

    monkeypatch.setattr(benchmarks, "BENCHMARKS", {"resize": (found, 2)})
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--folder", str(out), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        benchmarks.main()
    assert json.loads((out / "table.json").read_text())["failed"] == (["resize"] if fails else [])
    return int(ended.value.code or 0), (out / "table.md").read_text()


def test_main_exits_1_where_a_row_misses_or_a_benchmark_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    met = Row("fast", "s", [1.0, 3.0], "`cp`", [10.0], most=0.5)
    missed = Row("slow", "s", [9.0], "`cp`", [10.0], most=0.5)
    status, page = run_main(monkeypatch, tmp_path, met)
    assert status == 0
    assert "| fast | 2.00 s (1.00 - 3.00) | `cp` | 10.00 s (10.00 - 10.00) | ≤ 0.5 x | 0.20 x | met |" in page
    status, page = run_main(monkeypatch, tmp_path, met, missed)
    assert (status, "**missed**" in page) == (1, True)
    status, page = run_main(monkeypatch, tmp_path, met, fails=True)
    assert (status, "**resize failed**" in page, "| fast |" in page) == (1, True, True)


@pytest.mark.parametrize("size", [100, 10_000_000], ids=["many shards", "one file"])
def test_cmp_command_reads_all_but_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int) -> None:
    monkeypatch.setattr(checkpoints, "SHARD_BYTES", size)
    write(tmp_path / "base", TINY)
    ctxextend.resize(tmp_path / "base", to=32, output=tmp_path / "new")
    command = cmp_command(tmp_path / "base", tmp_path / "new")
    measure(command)
    for file in (tmp_path / "new").glob("*.safetensors"):
        start, header = header_of(file)
        for name, entry in header.items():
            if name in (TABLE, "__metadata__"):
                continue
            whole = bytearray(file.read_bytes())
            at = start + entry["data_offsets"][1] - 1
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(SystemExit, match="failed: sh"):
                measure(command)
            file.write_bytes(whole)
