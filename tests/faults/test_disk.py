"""Disk errors: every system call that uses a file fails in turn, and small disks are full."""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ctxextend import OutputError, plan_resize, resize
from tests.helpers.fork_server import Completed, ForkServer
from tests.helpers.outcomes import (
    NO_EXCHANGE,
    OUTPUT,
    RESIZE,
    expected_output,
    leftovers,
    publishing_calls,
    read_output,
    remove_output,
    restore_old_output,
)
from tests.helpers.pico import contents
from tests.helpers.tracing import Call, calls, needs_strace, sample, traced

# By error: the index of the first failing call and the step, since all errors take one code path.
ERRORS = {"ENOSPC": (0, 2), "EIO": (1, 4), "EDQUOT": (2, 4), "EROFS": (3, 4)}
FULL = ("ENOSPC", "EDQUOT")
NEEDS = re.compile(r"It needs [\d,]+ bytes, and .* has [\d,]+ free")


def succeeds(call: Call, error: str, calls: list[Call]) -> bool:
    """Whether a run succeeds although a call fails."""
    if call.name == "write":
        return call.arguments.startswith("2<")  # only stderr is lost
    if call.name == "copy_file_range":
        return True  # falls back to read and write
    if call.name == "flock":
        return True  # without a lock, other runs keep the folder
    renamed = next(i for i, other in enumerate(calls) if other.name == "rename")
    # After the rename, the output is complete, and what is removed is only a temporary folder.
    return call.name in ("fsync", "chmod", "rmdir") and call in calls[renamed:]


def is_output_error(done: Completed, error: str) -> bool:
    """Whether a command reports that writing failed, and for a full disk the space it needs."""
    if done.code != 1 or "Traceback" in done.stderr:
        return False
    message = done.stderr.replace("\n", " ")
    has_space = NEEDS.search(message) is not None
    is_full = error in FULL
    return f"Error: {OUTPUT} could not be written" in done.stderr and has_space == is_full


@pytest.mark.usefixtures("sweep")
@needs_strace
@pytest.mark.parametrize("error", ERRORS)
def test_resize_reports_any_failing_call_and_leaves_nothing(
    error: str, server: ForkServer, source: Path
) -> None:
    before = contents(source)
    new = expected_output(server, 32)
    write_calls = calls(server, *RESIZE)
    for call in sample(write_calls, *ERRORS[error]):
        remove_output()
        fault = f"{call.name}:error={error}:when={call.k}"
        done, log = traced(server, RESIZE, fault)
        assert "(INJECTED)" in log, call
        assert contents(source) == before, call
        assert leftovers() == [], call
        if succeeds(call, error, write_calls):
            assert done.code == 0, (call, done)
            assert read_output() == new, (call, done)
        elif call.name == "write" and call.arguments.startswith("1<"):
            assert done.code == 1, (call, done)
            assert read_output() == new, (call, done)
            assert "Error: Cannot print the result" in done.stderr
        else:
            assert is_output_error(done, error), (call, done)
            assert not OUTPUT.parent.exists(), call


@pytest.mark.usefixtures("sweep")
@needs_strace
@pytest.mark.parametrize("injections", [(), (NO_EXCHANGE,)], ids=["exchanged", "two renames"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_resize_force_leaves_the_old_or_the_new_output_if_any_call_fails(
    error: str, injections: tuple[str, ...], server: ForkServer, source: Path
) -> None:
    new = expected_output(server, 32)
    old = expected_output(server, 20)
    restore_old_output()
    forced = calls(server, *RESIZE, "--force", injections=injections)
    for call in sample(publishing_calls(forced), 0, 2):
        if injections and call.name == "renameat2":
            continue
        restore_old_output()
        fault = f"{call.name}:error={error}:when={call.k}"
        done, _ = traced(server, (*RESIZE, "--force"), *injections, fault)
        assert "Traceback" not in done.stderr, (call, done)
        assert read_output() in (old, new), (call, done)
        assert leftovers() == [], (call, done)
        if done.code == 0:
            assert read_output() == new, (call, done)


@pytest.mark.usefixtures("sweep")
@needs_strace
def test_resize_reports_the_file_if_any_read_fails(server: ForkServer, source: Path) -> None:
    new = expected_output(server, 32)
    all_reads = calls(server, *RESIZE, names=("read", "pread64"))
    reads = [call for call in all_reads if "source" in call.arguments]
    assert len(reads) > 5
    for call in sample(reads, 0, 3):
        remove_output()
        fault = f"{call.name}:error=EIO:when={call.k}"
        done, _ = traced(server, RESIZE, fault, names=("read", "pread64"))
        file = re.search(r"/(source/[^>]+)>", call.arguments)
        assert file is not None, call
        if done.code:
            problem = f"Error: {Path.cwd() / file[1]} cannot be read: Input/output error"
            assert problem in done.stderr, (call, done)
            assert read_output() is None, call
            assert leftovers() == [], call
            assert not OUTPUT.parent.exists(), call
        else:
            assert read_output() == new, call


def written_path(call: Call) -> str | None:
    """Return the path in a temporary folder that a call writes to, or None."""
    if call.name not in ("openat", "write", "copy_file_range"):
        return None
    match = re.search(r"<([^>]*\.ctxextend-[^>]*)>", call.arguments)
    if match is None:
        return None
    return match[1]


def syncs(calls: Sequence[Call], file: str) -> bool:
    """Whether some call syncs a file whose name in the log ends like this."""
    return any(call.name == "fsync" and f"{file}>" in call.arguments for call in calls)


@needs_strace
def test_resize_syncs_all_files_before_the_rename(server: ForkServer, source: Path) -> None:
    write_calls = calls(server, *RESIZE)
    renamed = next(i for i, call in enumerate(write_calls) if call.name == "rename")
    # The index of the last call that writes to a file or adds one to a folder.
    last = dict[str, int]()
    files = set()
    for i, call in enumerate(write_calls[:renamed]):
        path = written_path(call)
        if path is None:
            continue
        files.add(path)
        last[path] = i
        if call.name == "openat":
            folder = str(Path(path).parent)
            last[folder] = i
    assert len(files) == 9
    for path, i in last.items():
        assert syncs(write_calls[i + 1 : renamed], f"<{path}"), path
    assert syncs(write_calls[renamed:], str(OUTPUT.parent))


@contextmanager
def tmpfs(size: int) -> Iterator[Path]:
    """Mount a tmpfs of so many bytes."""
    folder = Path("small").resolve()
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_resize_checks_disk_space_before_it_writes(source: Path) -> None:
    with tmpfs(1 << 16) as small:
        problem = r"needs [\d,]+ bytes, and .* has 65,536 free"
        with pytest.raises(OutputError, match=problem) as caught:
            resize(source, to=4096, output=small / "out")
        assert "Free disk space" in (caught.value.hint or "")
        assert list(small.iterdir()) == []
        plan = plan_resize(source, to=4096)
        with pytest.raises(OutputError, match="needs"):
            plan.output.at(small / "out").check(force=False)


@pytest.fixture
def _without_space_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the check for disk space, so that the disk fills while writing."""
    monkeypatch.setattr(
        "ctxextend.checkpoint.atomic_output.check_disk_space", lambda folder, files: None
    )


@pytest.mark.usefixtures("_without_space_check")
@pytest.mark.parametrize("size", [1 << 12, 1 << 14, 3 << 13, 1 << 15])
def test_resize_on_a_filling_disk_leaves_nothing(size: int, source: Path) -> None:
    with tmpfs(size) as small:
        with pytest.raises(OutputError, match=r"No space left on device\. It needs .* free"):
            resize(source, to=4096, output=small / "out")
        assert list(small.iterdir()) == []


@pytest.mark.usefixtures("_without_space_check")
def test_resize_force_on_a_filling_disk_keeps_the_old_output(source: Path) -> None:
    with tmpfs(1 << 16) as small:
        old = resize(source, to=20, output=small / "out")
        before = contents(old.output)
        with pytest.raises(OutputError, match="No space left on device"):
            resize(source, to=32, output=small / "out", force=True)
        expected = {f"out/{name}": data for name, data in before.items()}
        assert contents(small) == expected
