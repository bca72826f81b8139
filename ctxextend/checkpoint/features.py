"""What cannot be done with checkpoints of some formats, by feature.

A feature is a flag (``--tune``), a method (``--method yarn``) or one of its settings
(``--method yarn:beta_fast``), or one of the uses below. `Checkpoint.check` looks up all that a
command requests.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ctxextend.errors import (
    CheckpointError,
    CtxextendError,
    MethodError,
    UnsupportedModelError,
)

# Uses
LOAD = "loading in transformers"
CONVERT = "convert"
SCALED_SETTINGS = "rotary settings that scale"  # by any method


class Refusal(NamedTuple):
    """Why a feature is refused, with the checkpoint as ``{name}``, and what to do instead."""

    message: str
    hint: str | None
    error: type[CtxextendError] = MethodError


def _incomplete(kind: str, hint: str) -> Mapping[str, Refusal]:
    """Return what cannot be done with weights that are not a complete model."""
    cannot = f"{{name}} is {kind}, which transformers cannot load by itself."
    return {
        LOAD: Refusal(cannot, hint, CheckpointError),
        CONVERT: Refusal(
            f"{{name}} cannot be converted: it is {kind}, not a complete model.",
            hint,
            UnsupportedModelError,
        ),
    }


def _flags(flags: tuple[str, ...], reason: str, after: str = ".") -> Mapping[str, Refusal]:
    """Return the refusals of flags; their hints are to remove them, and what comes `after`."""
    return {flag: Refusal(f"{flag} {reason}", f"Remove {flag}{after}") for flag in flags}


ADAPTER = _incomplete("an adapter", "Load it onto its base, and pass the merged model.")
WITHOUT_CONFIG = _incomplete(
    "a weights file without a config.json", "Pass the folder of a complete checkpoint."
)

_RUN_MODEL = ("--tune", "--deep")
OF_TRANSFORMERS = "the checkpoint of transformers that it was made from"
# Also of other reasons why a GGUF file cannot be resized.
GGUF_ROUTE = "Resize the checkpoint that it was made from, and convert that again."
GGUF_METHODS = ("yarn", "linear", "theta")  # that the keys of the format can state
_GGUF_RUNS = f"Pass {OF_TRANSFORMERS}; a resized one can be converted again."
_METHODS = f"Use one of {', '.join(GGUF_METHODS)}. {GGUF_ROUTE}"
_NO_KEY = ("dynamic", "llama3", "longrope", "switch", "proportional")
GGUF: Mapping[str, Refusal] = {
    LOAD: Refusal(
        "{name} is a GGUF file, which transformers does not load.", _GGUF_RUNS, CheckpointError
    ),
    CONVERT: Refusal("{name} is a GGUF file, which is not converted.", _GGUF_RUNS, CheckpointError),
    "--for": Refusal(
        "--for: a GGUF file is planned as llama.cpp reads it.",
        f"Use --for llama.cpp, or resize {OF_TRANSFORMERS}.",
    ),
    **_flags(
        _RUN_MODEL,
        "runs the model in transformers, and does not apply to a GGUF file.",
        f". {_GGUF_RUNS}",
    ),
    **_flags(
        ("--edit-only", "--link"), "does not apply to a GGUF file, which is written as a whole."
    ),
    **_flags(
        ("--model-type", "--table", "--tokenizer"),
        "does not apply to {name}: a GGUF file states its architecture.",
    ),
    **{
        f"--method {name}": Refusal(
            f"--method {name}: the GGUF format has no key for its settings.", _METHODS
        )
        for name in _NO_KEY
    },
    # The format has keys for them, but llama.cpp's converter writes none for Llama, and the model
    # then gets the defaults: `tests.engines` runs it.
    **{
        f"--method yarn:{key}": Refusal(
            f"--method yarn: a GGUF file does not state {key.replace('_', '-')}.",
            "Remove it, and see the flags of llama.cpp.",
        )
        for key in ("beta_fast", "beta_slow", "attention_factor")
    },
}

_BEFORE_MLX = "the checkpoint from before quantisation"
# Of weights that mlx-lm quantised.
MLX: Mapping[str, Refusal] = {
    LOAD: Refusal(
        "{name} is quantised by mlx-lm, and transformers does not load it.",
        f"Pass {_BEFORE_MLX}.",
        CheckpointError,
    ),
    "--for": Refusal(
        "--for: only mlx-lm reads {name}.", f"Use --for mlx, or resize {_BEFORE_MLX}."
    ),
    **_flags(
        _RUN_MODEL,
        "runs the model in transformers, but only mlx-lm reads {name}.",
        f", or use it on {_BEFORE_MLX}.",
    ),
}
