"""Dtypes as safetensors spells them, and as numpy has them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["BITS", "FLOATS", "NUMPY", "OF_ML_DTYPES", "numpy_dtype"]

# What numpy has by itself, and what ml_dtypes adds.
OF_NUMPY = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "?"},
    **{f"I{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
}
OF_ML_DTYPES = {
    "BF16": "bfloat16",
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
    **{"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"},
}

# Those of which `numpy_dtype` knows one, and those of them in which tables may be stored.
NUMPY = (*OF_NUMPY, *OF_ML_DTYPES)
FLOATS = ("F64", "F32", "F16", *OF_ML_DTYPES)

# Of every dtype, the bits that a value takes.
BITS: Mapping[str, int] = {
    **{"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8},
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "C64": 64},
    **{"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64},
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of one of `NUMPY`; raise KeyError for others."""
    if name in OF_NUMPY:
        return np.dtype(OF_NUMPY[name])
    import ml_dtypes  # at use: most checkpoints are of numpy's own dtypes

    added: np.dtype[Any] = np.dtype(getattr(ml_dtypes, OF_ML_DTYPES[name]))
    return added
