"""Whole processes measured and reported: wall time and peak resident memory."""

import os
import statistics
import subprocess
import time


def measure(command: list[str]) -> tuple[float, float]:
    """Run a process to its end; return its seconds and its peak resident memory in MB."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"failed: {' '.join(command)[:200]}")
    return seconds, usage.ru_maxrss / 1024


def report(results: dict[str, list[tuple[float, float]]]) -> None:
    """Print medians as a Markdown table, each beside the first one's."""
    medians = {
        name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in results.items()
    }
    base_seconds, base_memory = next(iter(medians.values()))
    print("| route | seconds, median (min - max) | x | peak memory, MB | x |")
    print("|---|---:|---:|---:|---:|")
    for name, (seconds, memory) in medians.items():
        times = [run[0] for run in results[name]]
        spread = f"{seconds:.2f} ({min(times):.2f} - {max(times):.2f})"
        print(f"| {name} | {spread} | {seconds / base_seconds:.2f} | {memory:.0f} | {memory / base_memory:.2f} |")
