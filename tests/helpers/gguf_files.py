"""Small GGUF files, written by the official package."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

LENGTH = 64
WIDTH = 32
WORDS = ("a", "b", "longer word", "")
TABLE = "position_embd.weight"

Tensors = Mapping[str, NDArray[Any]]


def write_gguf(
    path: Path,
    architecture: str = "llama",
    *,
    values: Mapping[str, Any] | None = None,
    tensors: Tensors | None = None,
    table: NDArray[Any] | None = None,
    alignment: int = 32,
    endianess: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
) -> Path:
    """Write a GGUF file.

    Args:
        path: The file.
        architecture: As in ``general.architecture``.
        values: Further metadata: integers become UINT32, floats FLOAT32, texts STRING.
        tensors: Its tensors; by default two of other types.
        table: Its position table; its rows are the context length.
        alignment: Of tensors, in bytes.
        endianess: Byte order.
    """
    writer = gguf.GGUFWriter(path, architecture, endianess=endianess)
    if alignment != gguf.GGUF_DEFAULT_ALIGNMENT:
        writer.add_custom_alignment(alignment)
    writer.add_name("small")
    length = LENGTH if table is None else len(table)
    metadata: dict[str, Any] = {
        f"{architecture}.context_length": length,
        f"{architecture}.embedding_length": WIDTH,
        f"{architecture}.attention.head_count": 2,
    }
    metadata |= values or {}
    for key, value in metadata.items():
        add_value(writer, key, value)
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * len(WORDS))
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    if tensors is None:
        tensors = other_tensors()
    before = dict(list(tensors.items())[:1])
    if table is not None:
        before[TABLE] = table
    for name, tensor in {**before, **tensors}.items():
        add_tensor(writer, name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a key; None leaves it out."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, Sequence):
        writer.add_array(key, value)


def add_tensor(writer: gguf.GGUFWriter, name: str, tensor: NDArray[Any]) -> None:
    """Add a tensor; bytes are quantised rows, and 16-bit integers are BF16."""
    if tensor.dtype == np.uint8:
        writer.add_tensor(name, tensor, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    elif tensor.dtype == np.uint16:
        writer.add_tensor(name, tensor, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, tensor)


def other_tensors() -> dict[str, NDArray[Any]]:
    """Return tensors whose sizes are not multiples of the alignment."""
    generator = np.random.default_rng(0)
    return {
        "token_embd.weight": generator.standard_normal((4, WIDTH)).astype(np.float32),
        "blk.0.attn_norm.weight": generator.standard_normal(5).astype(np.float32),
        "blk.0.ffn_up.weight": quantised(3),
        "output_norm.weight": generator.standard_normal(7).astype(np.float16),
    }


def quantised(rows: int) -> NDArray[np.uint8]:
    """Return rows of `WIDTH` values as Q8_0 stores them: blocks of a scale and 32 bytes."""
    generator = np.random.default_rng(1)
    return generator.integers(256, size=(rows, 34), dtype=np.uint8)


def read(path: Path) -> tuple[dict[str, Any], dict[str, tuple[str, bytes]]]:
    """Return the metadata and the tensors of a file, as the official package reads them."""
    reader = gguf.GGUFReader(path)
    values = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {}
    for tensor in reader.tensors:
        kind = f"{tensor.tensor_type.name} {tensor.shape.tolist()}"
        tensors[tensor.name] = (kind, tensor.data.tobytes())
    return values, tensors


def types(path: Path) -> dict[str, list[str]]:
    """Return the types of the values by key, in file order."""
    fields = gguf.GGUFReader(path).fields
    return {name: [kind.name for kind in field.types] for name, field in fields.items()}
