import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from ctxextend.checkpoints.copy import NOT_IN_KERNEL, copy_file, copy_range, write_all, write_file
from ctxextend.errors import CheckpointError

DATA = bytes(range(256)) * 20_000


def refuse(number: int) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


def copied(tmp_path: Path, start: int = 3, length: int = 5_000_001) -> bytes:
    (tmp_path / "from").write_bytes(DATA)
    moved: list[int] = []
    with (tmp_path / "from").open("rb", buffering=0) as source, (tmp_path / "to").open("wb", buffering=0) as output:
        output.write(b"head")
        copy_range(source, output, start, length, moved.append)
        output.write(b"tail")
    assert sum(moved) == length
    return (tmp_path / "to").read_bytes()


EXPECTED = b"head" + DATA[3:5_000_004] + b"tail"


def test_copy_range_appends_the_range(tmp_path: Path) -> None:
    assert copied(tmp_path) == EXPECTED


@pytest.mark.parametrize("number", sorted(NOT_IN_KERNEL))
def test_copy_range_falls_back_with_equal_bytes(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", refuse(number), raising=False)
    assert copied(tmp_path) == EXPECTED


def test_copy_range_needs_no_system_call_of_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    assert copied(tmp_path) == EXPECTED


def test_copy_range_goes_on_after_a_short_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.copy_file_range

    def short(source: int, destination: int, count: int, offset_src: int) -> int:
        return real(source, destination, min(count, 1_000_003), offset_src=offset_src)

    monkeypatch.setattr(os, "copy_file_range", short)
    assert copied(tmp_path) == EXPECTED


def test_copy_range_of_a_file_that_ends_too_early_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="became shorter"):
        copied(tmp_path, length=len(DATA))


def test_copy_range_lets_a_full_disk_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        copied(tmp_path)


def test_copy_file_keeps_bytes_and_mode(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(DATA)
    (tmp_path / "from").chmod(0o604)
    copy_file(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to").read_bytes() == DATA
    assert (tmp_path / "to").stat().st_mode & 0o777 == 0o604


def test_copy_file_of_a_missing_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is missing"):
        copy_file(tmp_path / "from", tmp_path / "to")


def test_write_file_never_overwrites(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"one")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"one"


class Sluggish(io.RawIOBase):
    """A file of which the system takes three bytes at a time."""

    def __init__(self) -> None:
        self.taken = b""

    def write(self, data: Any) -> int:
        self.taken += bytes(data[:3])
        return len(data[:3])


def test_write_all_goes_on_after_short_writes() -> None:
    file = Sluggish()
    write_all(cast(BinaryIO, file), memoryview(b"0123456789"))
    assert file.taken == b"0123456789"
