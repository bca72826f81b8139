"""Disks that fail: each system call that changes a file in turn, and a small one that is really full."""

from pathlib import Path

import pytest

from tests.faults.nursery import Nursery
from tests.faults.outcomes import RESIZE, found, leftovers, made, put_none
from tests.faults.tracing import Call, calls, needs_strace, traced
from tests.pico import contents

ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS")
# Calls whose failure a run survives, since there is another way, or nothing that is needed comes of them.
FORGIVEN = ("flock", "copy_file_range")


def fails(call: Call) -> bool:
    """Whether a call's failure must end the run: one that prints, or that finds what is there, need not."""
    return True


@needs_strace
@pytest.mark.parametrize("error", ERRORS)
def test_resize_says_what_failed_wherever_the_disk_fails(error: str, resizing: Nursery, source: Path) -> None:
    before, new = contents(source), made(resizing, 32)
    for call in calls(resizing, *RESIZE):
        put_none()
        ended, log = traced(resizing, RESIZE, f"{call.name}:error={error}:when={call.k}")
        print(
            call,
            call.given[:60],
            ended.code,
            found() is not None,
            leftovers(),
            ended.stderr.replace("\n", "|")[:250] if ended.code else "",
        )
    assert 0
