"""Where each tensor goes in the new file, decided from the old file and the new sizes alone.

File systems that share blocks share them at equal offsets modulo the block size. So the header is padded with
spaces until unchanged tensors stand where they stood modulo 4,096, and a new table takes its old place only
where the difference is whole blocks; elsewhere it goes last.
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ctxextend.checkpoints.tensorfile import BITS, Described, TensorEntry

__all__ = ["BLOCK", "Layout", "Placement", "plan_layout"]

BLOCK = 4096

# A shape and a dtype.
Kind = tuple[tuple[int, ...], str]


@dataclass(frozen=True)
class Placement:
    """One tensor's place in the new file.

    Attributes:
        entry: The tensor in the old file.
        shape: Its new shape.
        dtype: Its new dtype, as safetensors calls it.
        start: Its first byte, counted from the end of the new header.
        size: Bytes it takes there.
        is_new: Whether its bytes are not those of the old file.
    """

    entry: TensorEntry
    shape: tuple[int, ...]
    dtype: str
    start: int
    size: int
    is_new: bool

    @property
    def shift(self) -> int:
        """Bytes by which it moved towards the end, counted from the end of the headers."""
        return self.start - self.entry.start


@dataclass(frozen=True)
class Layout:
    """The whole of a new file.

    Attributes:
        header: Its first bytes: length, JSON, padding.
        placements: Its tensors, in the order of their bytes.
        size: Bytes of the whole file.
    """

    header: bytes
    placements: tuple[Placement, ...]
    size: int


def plan_layout(
    file: Described,
    shapes: Mapping[str, tuple[int, ...]],
    dropped: Collection[str],
    dtypes: Mapping[str, str] | None = None,
) -> Layout:
    """Lay out the file that has new tensors in the place of some and lacks others.

    Args:
        file: The old file.
        shapes: The shapes of new tensors by their names.
        dropped: Names that are left out.
        dtypes: The dtypes of new tensors where they are others than before, as safetensors calls them.
    """
    new = {name: (shape, (dtypes or {}).get(name, file.entries[name].dtype)) for name, shape in shapes.items()}
    placements = _place(_in_order(file, new, dropped), new)
    header = _header(file, placements)
    return Layout(header, placements, len(header) + sum(placement.size for placement in placements))


def _in_order(file: Described, new: Mapping[str, Kind], dropped: Collection[str]) -> list[TensorEntry]:
    kept = [entry for entry in file.entries.values() if entry.name not in dropped]
    kept.sort(key=lambda entry: (entry.start, entry.end))
    return sorted(kept, key=lambda entry: (_size(*new.get(entry.name, _kind(entry))) - entry.size) % BLOCK != 0)


def _kind(entry: TensorEntry) -> Kind:
    return entry.shape, entry.dtype


def _size(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * BITS[dtype] // 8


def _place(entries: list[TensorEntry], new: Mapping[str, Kind]) -> tuple[Placement, ...]:
    placements, start = [], 0
    for entry in entries:
        kind = new.get(entry.name, _kind(entry))
        placements.append(Placement(entry, *kind, start, _size(*kind), entry.name in new))
        start += placements[-1].size
    return tuple(placements)


def _header(file: Described, placements: tuple[Placement, ...]) -> bytes:
    places = {placement.entry.name: placement for placement in placements}
    header = {}
    for name, value in file.header.items():
        if name in places:
            place = places[name]
            offsets = [place.start, place.start + place.size]
            header[name] = value | {"dtype": place.dtype, "shape": list(place.shape), "data_offsets": offsets}
        elif name == "__metadata__":
            header[name] = value
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    # The data's start modulo the block size for which most unchanged bytes keep their place in their block.
    wanted = (file.data_start - _commonest_shift(placements)) % BLOCK
    text += b" " * ((wanted - 8 - len(text)) % BLOCK)
    return len(text).to_bytes(8, "little") + text


def _commonest_shift(placements: tuple[Placement, ...]) -> int:
    sizes: dict[int, int] = {}
    for placement in placements:
        if not placement.is_new:
            shift = placement.shift % BLOCK
            sizes[shift] = sizes.get(shift, 0) + placement.size
    return max(sizes, key=lambda shift: sizes[shift], default=0)
