"""Ratios, table and exit code of the benchmarks; the benchmarks themselves are not run."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import ctxextend
from benchmarks import __main__ as benchmarks
from benchmarks import checkpoints
from benchmarks.checkpoints import TABLE, Shape, write
from benchmarks.files import cmp_command, read_header
from benchmarks.measure import Cost, Row, alternate, measure, measure_json, python

TINY = Shape(64, 2, 10, 16)


def test_alternate_runs_all_routes_in_turn() -> None:
    calls: list[str] = []

    def run(name: str) -> Cost:
        calls.append(name)
        return Cost(len(calls), 1.0)

    costs = alternate({name: partial(run, name) for name in "ab"}, 2, before=lambda: calls.append("-"))
    assert calls == ["-", "a", "-", "b", "-", "a", "-", "b"]
    assert [[cost.seconds for cost in one] for one in costs] == [[2, 6], [4, 8]]


def test_measure_json_returns_peak_memory_and_output() -> None:
    code = "import json; data = b'x' * 100_000_000; print(json.dumps({'a': len(data)}))"
    cost, output = measure_json(python(code))
    assert output == {"a": 100_000_000}
    assert cost.megabytes > 100


def run_main(monkeypatch: pytest.MonkeyPatch, out: Path, *rows: Row, fails: bool = False) -> tuple[int, str]:
    def benchmark(folder: Path, rounds: int) -> Iterator[Row]:
        yield from rows
        if fails:
            raise SystemExit("failed: cp")

    monkeypatch.setattr(benchmarks, "BENCHMARKS", {"resize": (benchmark, 2)})
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--folder", str(out), "--out", str(out)])
    with pytest.raises(SystemExit) as exited:
        benchmarks.main()
    assert json.loads((out / "table.json").read_text())["failed"] == (["resize"] if fails else [])
    return int(exited.value.code or 0), (out / "table.md").read_text()


def test_main_exits_1_if_a_row_misses_or_a_benchmark_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    met = [
        Row("fast", "s", [1.0, 3.0, 9.0], "`cp`", [10.0], maximum=0.3),
        Row("large", "MB/s", [20.0], "`cp`", [10.0], minimum=2),
    ]
    status, page = run_main(monkeypatch, tmp_path, *met)
    assert status == 0
    assert "| fast | 3.00 s (1.00 - 9.00) | `cp` | 10.00 s (10.00 - 10.00) | ≤ 0.3 x | 0.30 x | met |" in page
    for missed in (replace(met[0], maximum=0.29), replace(met[1], minimum=2.1)):
        status, page = run_main(monkeypatch, tmp_path, *met, missed)
        assert (status, page.count("| met |"), page.count("**missed**")) == (1, 2, 1)
    status, page = run_main(monkeypatch, tmp_path, *met, fails=True)
    assert (status, "**resize failed**" in page, "| fast |" in page) == (1, True, True)


@pytest.mark.parametrize("size", [100, 10_000_000], ids=["many shards", "one file"])
def test_cmp_command_compares_everything_except_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int
) -> None:
    monkeypatch.setattr(checkpoints, "SHARD_BYTES", size)
    write(tmp_path / "base", TINY)
    ctxextend.resize(tmp_path / "base", to=32, output=tmp_path / "new")
    command = cmp_command(tmp_path / "base", tmp_path / "new")
    measure(command)
    for file in (tmp_path / "new").glob("*.safetensors"):
        start, header = read_header(file)
        for name, entry in header.items():
            if name in (TABLE, "__metadata__"):
                continue
            content = bytearray(file.read_bytes())
            index = start + entry["data_offsets"][1] - 1
            file.write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
            with pytest.raises(SystemExit, match="failed: sh"):
                measure(command)
            file.write_bytes(content)
