"""Bytes of two files compared: by the C library, while other threads read."""

import ctypes
import os
from pathlib import Path

import numpy as np

from ctxextend.checkpoints.copying import open_source, read_whole, stamp

__all__ = ["first_difference", "same_bytes"]

# Bytes read of each file at once: both stay in a processor's own cache until they are compared.
BLOCK = 1 << 18

# Python compares bytes no slower, but holds its lock meanwhile, and numpy writes a byte for each that it compares.
MEMCMP = (ctypes.CDLL("msvcrt") if os.name == "nt" else ctypes.CDLL(None)).memcmp
MEMCMP.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
MEMCMP.restype = ctypes.c_int


def same_bytes(one: Path, other: Path) -> bool:
    """Whether two files hold the same bytes.

    Raises:
        CheckpointError: One cannot be read.
    """
    sizes = [stamp(path) for path in (one, other)]
    if sizes[0] is None or sizes[1] is None or sizes[0][0] != sizes[1][0]:
        return False
    return first_difference((one, 0), (other, 0), sizes[0][0]) is None


def first_difference(one: tuple[Path, int], other: tuple[Path, int], length: int) -> int | None:
    """Return the first byte in which two ranges of files differ, counted from their starts; None where none does.

    Args:
        one: A file, and where in it the range begins.
        other: The other.
        length: Bytes of both.

    Raises:
        CheckpointError: A file cannot be read, or ends too early.
    """
    ours, theirs = (np.empty(min(BLOCK, length), np.uint8) for _ in range(2))
    blocks, addresses = (ours.data, theirs.data), (ours.ctypes.data, theirs.ctypes.data)
    with open_source(one[0]) as our_file, open_source(other[0]) as their_file:
        our_file.seek(one[1])
        their_file.seek(other[1])
        for start in range(0, length, BLOCK):
            size = min(BLOCK, length - start)
            read_whole(our_file, blocks[0][:size])
            read_whole(their_file, blocks[1][:size])
            if MEMCMP(*addresses, size):
                return start + int((ours[:size] != theirs[:size]).argmax())
    return None
