"""Where the numbers of a torch file stand in it: they are read from there, and never through torch's map of the file.

Touching a map whose file was cut short meanwhile ends the process, and what it shows of a file that is written to is
a mixture. Only the addresses that torch maps tensors to are used: the distances between them are those in the file.
"""

import re
import sys
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.checkpoints.copying import read_range
from ctxextend.errors import CheckpointError

if TYPE_CHECKING:
    import torch

__all__ = ["Stored", "find_places", "is_native", "place_of", "read_stored"]

# How torch calls the records that hold numbers, and the one that says in which order their bytes are.
NUMBERS = re.compile(r"[^/]+/data/[^/]+")
BYTE_ORDER = re.compile(r"[^/]+/byteorder")

# A record begins with so many bytes, the last four of which say how long its name and what follows that are.
HEADER = 30


@dataclass(frozen=True)
class Stored:
    """What a torch file holds.

    Attributes:
        path: Where it is.
        content: Tensors and plain values. What a mapped tensor holds is asked of `read_stored` alone.
        is_mapped: Whether the tensors' numbers are read from the disk at use; False where all are in memory.
        places: The file's byte where each mapped storage begins, by its address in memory.
    """

    path: Path
    content: Any
    is_mapped: bool = False
    places: Mapping[int, int] = field(default_factory=dict)


def is_native(archive: zipfile.ZipFile) -> bool:
    """Whether the numbers in a torch file stand in the byte order of this machine; without a word, they are little."""
    said = [archive.read(name) for name in archive.namelist() if BYTE_ORDER.fullmatch(name)]
    return (said or [b"little"]) == [sys.byteorder.encode()]


def find_places(path: Path, addresses: Collection[int]) -> dict[int, int]:
    """Return the byte of a torch file where each of its storages begins.

    Args:
        path: A zip file that torch mapped.
        addresses: Where in memory the storages that are not empty were mapped to.

    Raises:
        CheckpointError: They are not the records of the file, each once.
    """
    with zipfile.ZipFile(path) as archive:
        records = [record for record in archive.infolist() if NUMBERS.fullmatch(record.filename) and record.file_size]
    places = dict(zip(sorted(addresses), sorted(_begin(path, record) for record in records), strict=False))
    if not len(places) == len(addresses) == len(records) or len({at - place for at, place in places.items()}) > 1:
        message = f"{path} is a zip file with records of numbers that are not its tensors', so torch did not write it."
        raise CheckpointError(message, "Fetch or save it again.")
    return places


def _begin(path: Path, record: zipfile.ZipInfo) -> int:
    """Return the byte behind what stands in front of a record, which the zip's list of records says nothing of."""
    header = read_range(path, record.header_offset, HEADER)
    return record.header_offset + HEADER + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))


def place_of(stored: Stored, tensor: "torch.Tensor") -> int | None:
    """Return the byte of the file where a tensor's first number stands; None where it is in memory, or has none."""
    at = tensor.untyped_storage().data_ptr()
    return stored.places[at] + tensor.data_ptr() - at if tensor.numel() and at in stored.places else None


def read_stored(stored: Stored, tensor: "torch.Tensor") -> "torch.Tensor":
    """Return a tensor with its numbers in memory, of the shape and dtype that it had.

    Raises:
        CheckpointError: The file cannot be read, or shrank.
    """
    import torch

    place = place_of(stored, tensor)
    if place is None:
        return tensor.resolve_conj().resolve_neg()
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    data = torch.frombuffer(read_range(stored.path, place, reach * tensor.element_size()), dtype=torch.uint8)
    found = data.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    found = found.conj().resolve_conj() if tensor.is_conj() else found
    return found.neg() if tensor.is_neg() else found
