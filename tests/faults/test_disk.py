"""Disks that fail: each system call that changes a file in turn, those that read; and small ones that are full."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ctxextend import OutputError, plan_resize, resize
from tests.faults.nursery import Ended, Nursery
from tests.faults.outcomes import NO_EXCHANGE, OUTPUT, RESIZE, found, last_of, leftovers, made, put_none, put_old
from tests.faults.tracing import Call, calls, needs_strace, some, traced
from tests.pico import contents

# With the first call that fails so, and of how many one does: the others go the way of the first.
ERRORS = {"ENOSPC": (0, 1), "EIO": (0, 2), "EDQUOT": (0, 2), "EROFS": (1, 2)}
FULL = ("ENOSPC", "EDQUOT")
# What the standard says that a signal may cut short.
INTERRUPTIBLE = ("openat", "write", "copy_file_range", "fsync", "flock", "renameat2")
NEEDS = re.compile(r"It needs [\d,]+ bytes, and .* has [\d,]+ free")


def survives(call: Call, error: str, calls: list[Call]) -> bool:
    """Whether a run comes to a good end though a call fails."""
    if call.name == "write":
        return call.given.startswith("2<")  # nobody hears what it says
    if call.name == "copy_file_range":
        return True  # there are other ways to copy
    named = next(i for i, one in enumerate(calls) if one.name == "rename")
    # What is not locked is not cleared by others; and an output that has its name is made.
    return call.name == "flock" or (call.name == "fsync" and call in calls[named:])


def is_refusal(ended: Ended, error: str) -> bool:
    """Whether a command says in good order that its output could not be written, and of a full disk how full it is."""
    told = NEEDS.search(ended.stderr.replace("\n", " ")) is not None
    said = f"Error: {OUTPUT} could not be written" in ended.stderr and "Traceback" not in ended.stderr
    return ended.code == 1 and said and told == (error in FULL)


@pytest.mark.usefixtures("sweep")
@needs_strace
@pytest.mark.parametrize("error", ERRORS)
def test_resize_where_any_call_fails_says_so_and_leaves_nothing(error: str, resizing: Nursery, source: Path) -> None:
    before, new = contents(source), made(resizing, 32)
    made_calls = calls(resizing, *RESIZE)
    for call in some(made_calls, *ERRORS[error]):
        put_none()
        ended, log = traced(resizing, RESIZE, f"{call.name}:error={error}:when={call.k}")
        assert "(INJECTED)" in log, call
        assert (contents(source) == before, leftovers()) == (True, []), call
        if survives(call, error, made_calls):
            assert (ended.code, found()) == (0, new), (call, ended)
        elif call.name == "write" and call.given.startswith("1<"):
            assert (ended.code, found()) == (1, new), (call, ended)
            assert "Error: Cannot print the result" in ended.stderr
        else:
            assert is_refusal(ended, error), (call, ended)
            assert not OUTPUT.parent.exists(), call


@pytest.mark.usefixtures("sweep")
@needs_strace
@pytest.mark.parametrize("injections", [(), (NO_EXCHANGE,)], ids=["exchanged", "two renames"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_resize_force_where_any_call_fails_leaves_the_old_or_the_new(
    error: str, injections: tuple[str, ...], resizing: Nursery, source: Path
) -> None:
    new, old = made(resizing, 32), made(resizing, 20)
    put_old()
    for call in some(last_of(calls(resizing, *RESIZE, "--force", injections=injections)), 0, 2):
        if injections and call.name == "renameat2":
            continue
        put_old()
        ended, _ = traced(resizing, (*RESIZE, "--force"), *injections, f"{call.name}:error={error}:when={call.k}")
        assert "Traceback" not in ended.stderr, (call, ended)
        assert (found() in (old, new), leftovers()) == (True, []), (call, ended)
        if ended.code == 0:
            assert found() == new, (call, ended)


@pytest.mark.usefixtures("sweep")
@needs_strace
def test_resize_goes_on_where_a_signal_cuts_a_call_short(resizing: Nursery, source: Path) -> None:
    new, old = made(resizing, 32), made(resizing, 20)
    put_old()
    assert old != new
    for call in some(calls(resizing, *RESIZE, "--force"), 0, 2):
        if call.name in INTERRUPTIBLE:
            put_old()
            ended, log = traced(resizing, (*RESIZE, "--force"), f"{call.name}:error=EINTR:when={call.k}")
            assert "(INJECTED)" in log, call
            assert (ended.code, found(), leftovers()) == (0, new, []), (call, ended)


@needs_strace
def test_resize_where_any_read_fails_names_the_file(resizing: Nursery, source: Path) -> None:
    new = made(resizing, 32)
    reads = [call for call in calls(resizing, *RESIZE, of=("read", "pread64")) if "source" in call.given]
    assert len(reads) > 5
    for call in reads:
        put_none()
        ended, _ = traced(resizing, RESIZE, f"{call.name}:error=EIO:when={call.k}", of=("read", "pread64"))
        file = re.search(r"/(source/[^>]+)>", call.given)
        assert file is not None, call
        if ended.code:
            assert f"Error: {Path.cwd() / file[1]} cannot be read: Input/output error" in ended.stderr, (call, ended)
            assert (found(), leftovers(), OUTPUT.parent.exists()) == (None, [], False), call
        else:
            assert found() == new, call


def written(call: Call) -> str | None:
    """The file that a call writes to, below a folder of ours."""
    found = re.search(r"<([^>]*\.ctxextend-new-[^>]*)>", call.given)
    return found[1] if found and call.name in ("openat", "write", "copy_file_range") else None


@needs_strace
def test_resize_waits_for_the_disk_before_the_output_has_its_name(resizing: Nursery, source: Path) -> None:
    made_calls = calls(resizing, *RESIZE)
    renamed = next(i for i, call in enumerate(made_calls) if call.name == "rename")
    last: dict[str, int] = {}  # the last call that writes to a file, or makes one in a folder
    files = set()
    for i, call in enumerate(made_calls[:renamed]):
        if path := written(call):
            files.add(path)
            last[path] = i
            if call.name == "openat":
                last[str(Path(path).parent)] = i
    assert len(files) == 9
    for path, i in last.items():
        assert any(call.name == "fsync" and f"<{path}>" in call.given for call in made_calls[i + 1 : renamed]), path
    assert any(call.name == "fsync" and f"{OUTPUT.parent}>" in call.given for call in made_calls[renamed:])


@contextmanager
def tmpfs(size: int) -> Iterator[Path]:
    """Mount a file system of so many bytes that lies in memory."""
    folder = Path("small").resolve()
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_resize_on_a_small_disk_asks_for_room_before_it_writes(source: Path) -> None:
    with tmpfs(1 << 16) as small:
        with pytest.raises(OutputError, match=r"needs [\d,]+ bytes, and .* has 65,536 free") as caught:
            resize(source, to=4096, output=small / "out")
        assert "Free some space" in (caught.value.hint or "")
        assert list(small.iterdir()) == []
        with pytest.raises(OutputError, match="needs"):
            plan_resize(source, to=4096).check_output(small / "out")


def test_resize_fits_where_it_says_that_it_does(source: Path) -> None:
    with tmpfs(1 << 12) as small, pytest.raises(OutputError) as caught:
        resize(source, to=32, output=small / "out")
    needed = re.search(r"needs ([\d,]+) bytes", caught.value.message)
    assert needed is not None
    with tmpfs(int(needed[1].replace(",", ""))) as small:
        resize(source, to=32, output=small / "out")


def test_resize_on_a_disk_that_takes_no_more_files_says_so(source: Path) -> None:
    with tmpfs(1 << 20) as small:
        subprocess.run(["mount", "-o", "remount,nr_inodes=4", small], check=True)
        with pytest.raises(OutputError, match="No space left on device"):
            resize(source, to=32, output=small / "out")


@pytest.fixture
def _unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resize as if there were room when it was asked for, and none when it is needed."""
    monkeypatch.setattr("ctxextend.checkpoints.atomic_output.check_disk_space", lambda folder, files: None)


@pytest.mark.usefixtures("_unasked")
@pytest.mark.parametrize("room", [1 << 12, 1 << 14, 3 << 13, 1 << 15])
def test_resize_on_a_disk_that_fills_meanwhile_leaves_nothing(room: int, source: Path) -> None:
    with tmpfs(room) as small:
        with pytest.raises(OutputError, match=r"No space left on device\. It needs .* free"):
            resize(source, to=4096, output=small / "out")
        assert list(small.iterdir()) == []


@pytest.mark.usefixtures("_unasked")
def test_resize_force_on_a_disk_that_fills_meanwhile_keeps_the_old(source: Path) -> None:
    with tmpfs(1 << 16) as small:
        before = contents(resize(source, to=20, output=small / "out").output)
        with pytest.raises(OutputError, match="No space left on device"):
            resize(source, to=32, output=small / "out", force=True)
        assert contents(small) == {f"out/{name}": data for name, data in before.items()}


def test_resize_to_more_than_any_disk_holds_is_refused(source: Path) -> None:
    with pytest.raises(OutputError, match="needs .* bytes, and .* free"):
        resize(source, to=10**12)
    assert sorted(path.name for path in Path().iterdir()) == ["source"]
