import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from ctxextend.checkpoints.copy import copy_file, copy_range, write_all
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
        copy_range(source, output, start, length, lambda file, count: moved.append(count))
        output.write(b"tail")
    assert sum(moved) == length
    return (tmp_path / "to").read_bytes()


EXPECTED = b"head" + DATA[3:5_000_004] + b"tail"


def short(source: int, destination: int, count: int, offset_src: int) -> int:
    return COPY_FILE_RANGE(source, destination, min(count, 1_000_003), offset_src=offset_src)


COPY_FILE_RANGE: Callable[..., int] = getattr(os, "copy_file_range", None) or refuse(errno.ENOSYS)
WAYS = {"whole": COPY_FILE_RANGE, "short": short, "refused": refuse(errno.EXDEV), "broken": refuse(errno.EIO)}


@pytest.mark.parametrize("way", [*WAYS, "no such call"])
def test_copy_range_appends_the_range_by_every_way(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way in WAYS:
        monkeypatch.setattr(os, "copy_file_range", WAYS[way], raising=False)
    else:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    assert copied(tmp_path) == EXPECTED


def test_copy_range_of_a_file_that_ends_too_early_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="became shorter"):
        copied(tmp_path, length=len(DATA))


def test_copy_file_keeps_bytes_and_mode_and_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(DATA)
    (tmp_path / "from").chmod(0o604)
    copy_file(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to").read_bytes() == DATA
    assert (tmp_path / "to").stat().st_mode & 0o777 == 0o604
    with pytest.raises(FileExistsError):
        copy_file(tmp_path / "from", tmp_path / "to")
    with pytest.raises(CheckpointError, match="is missing"):
        copy_file(tmp_path / "missing", tmp_path / "other")


def test_write_all_goes_on_after_short_writes() -> None:
    class Sluggish(io.RawIOBase):
        taken = b""

        def write(self, data: Any) -> int:
            self.taken += bytes(data[:3])
            return len(data[:3])

    file = Sluggish()
    write_all(cast(BinaryIO, file), memoryview(b"0123456789"))
    assert file.taken == b"0123456789"
