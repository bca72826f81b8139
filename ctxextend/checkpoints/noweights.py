"""Why a folder has no weights that can be read, and what to do about it."""

import re
import shlex
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.checkpoints.weightnames import READABLE, SINGLE_FILE, VARIANT_FILE, first_weights, with_variant
from ctxextend.errors import CheckpointError

if TYPE_CHECKING:
    from ctxextend.checkpoints.source import Source

__all__ = ["model_class", "no_weights"]

WEIGHTS_SUFFIXES = {".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".safetensors"}

# What other frameworks call their weights, and how transformers 4, the last that could, is told to read them.
FOREIGN = {"tf_model*.h5*": ("tensorflow tf-keras", "from_tf=True"), "flax_model*.msgpack*": ("flax", "from_flax=True")}


def no_weights(
    folder: Path, config: Mapping[str, Any] | None, variant: str | None, source: "Source"
) -> CheckpointError:
    """Return the error for a folder without weights that can be read, with what to type next.

    Args:
        folder: The folder.
        config: Its config.json, parsed; None where it has none.
        variant: The variant that was asked for.
        source: Where it came from.
    """
    here, elsewhere = sorted(path.name for path in folder.iterdir()), source.not_fetched
    for pattern, (library, flag) in FOREIGN.items():
        if any(fnmatch(name, pattern) for name in (*here, *elsewhere)):
            return _foreign(_as_loaded(folder, source), config, library, flag)
    others = [name for name in here if Path(name).suffix in WEIGHTS_SUFFIXES]
    found = f", only {', '.join(others)}" if others else ""
    readable = [name for name in others if name.endswith(READABLE)]
    variants = dict.fromkeys(
        match["variant"] for name in (*here, *elsewhere) if (match := VARIANT_FILE.fullmatch(name))
    )
    if variant is not None and first_weights(folder, None):
        hint = "Leave --variant out, or fetch the missing file."
    elif variants:
        hint = f"Choose one: {' or '.join(f'--variant {name}' for name in variants)}."
    elif readable:
        hint = f"Name the file itself, {folder / readable[0]}, or fetch the missing one."
    else:
        hint = "Fetch the missing file, or load the model in transformers and save it with save_pretrained."
    wanted = with_variant(SINGLE_FILE, variant), with_variant("pytorch_model.bin", variant)
    return CheckpointError(f"{folder} holds neither {' nor '.join(wanted)}, nor an index of shards{found}.", hint)


def _as_loaded(folder: Path, source: "Source") -> tuple[str, str]:
    """Return what from_pretrained is given for a folder, as code, and a name for it."""
    if source.kind != "hub":
        return repr(str(folder)), folder.name
    inside = re.search(r"/snapshots/[^/]+/(.+)", folder.as_posix())
    revision = f", revision={source.revision!r}" if source.revision else ""
    return f"{source.hub_id!r}{revision}" + (f", subfolder={inside[1]!r}" if inside else ""), source.name


def model_class(config: Mapping[str, Any]) -> str | None:
    """Return the class that a config names; None where it names none, or what cannot be one."""
    stated = config.get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    # The name stands in commands that people paste, and a stranger wrote it.
    return first if isinstance(first, str) and first.isidentifier() and first.isascii() else None


def _foreign(loaded: tuple[str, str], config: Mapping[str, Any] | None, library: str, flag: str) -> CheckpointError:
    """Return the error for another framework's weights, with the command that converts them."""
    what, name = loaded
    load = f"transformers.{model_class(config or {}) or 'AutoModel'}.from_pretrained({what}, {flag})"
    code = f"import transformers; {load}.save_pretrained({f'{name}-safetensors'!r})"
    return CheckpointError(
        f"{name} holds {library.split()[0]} weights alone, which transformers 5 no longer reads.",
        f'Convert them with transformers 4: pip install "transformers<5" {library} torch, then '
        f"python -c {shlex.quote(code)}",
    )
