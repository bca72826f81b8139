"""Files of a training run that are not a model's weights, or only parts of them to be joined."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.checkpoints.filenames import first_match
from ctxextend.errors import CheckpointError

# Files with the state of an optimizer, a schedule or random numbers.
TRAINING_STATE = (
    "optimizer*.pt",
    "optimizer*.bin",
    "optimizer*.safetensors",
    "scheduler*.pt",
    "scheduler*.bin",
    "scaler*.pt",
    "rng_state*.pth",
    "random_states*.pkl",
    "training_args.bin",
    "*_optim_states.pt",
    "common.pt",
)
# Patterns are compiled at use: most checkpoints need none of them.
DEEPSPEED_FILE = r"(?:zero_pp_rank_\d+_)?mp_rank_\d+_model_states\.pt"
ZERO_3_FILE = r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt"
MEGATRON_FILE = "model_optim_rng.pt"
META_FILE = r"consolidated(?:\.\d+)?\.(?:pth|safetensors)"
DISTRIBUTED = ".distcp"
MAX_PICKLE = 1 << 26  # bytes of a pickle that are searched for the program that wrote it

DEEPSPEED = "DeepSpeed checkpoint"
LIGHTNING = "Lightning checkpoint"
MEGATRON = "Megatron-LM checkpoint"
MARKS = {  # texts in the pickles of checkpoints
    b"pytorch-lightning_version": LIGHTNING,
    b"ds_version": DEEPSPEED,
    b"checkpoint_version": MEGATRON,
}
CONVERT_MEGATRON = (
    "Its names and the order of its queries, keys and values are not those of transformers: "
    "convert it with Megatron Bridge, or with tools/checkpoint/convert.py of Megatron-LM."
)
# Formats of tensors that are not transformers', each with what to do.
MEGATRON_FORMAT = ("Megatron-LM's format", CONVERT_MEGATRON)
META_FORMAT = (
    "Meta's or Mistral's own format",
    "Pass the folder in the format of transformers from the same source, or convert this one with "
    "convert_llama_weights_to_hf.py or convert_mistral_weights_to_hf.py of transformers 4.",
)


def is_training_state(name: str) -> bool:
    """Whether a file has the name of a training run's state, which contains no weights."""
    path = PurePosixPath(PurePosixPath(name).name)
    return first_match(path, TRAINING_STATE) is not None


def may_be_model(name: str) -> bool:
    """Whether a weights file can contain a complete model of transformers, by its name."""
    if name == MEGATRON_FILE or re.fullmatch(META_FILE, name) or _is_zero_3(name):
        return False
    return not is_training_state(name)


def _is_zero_3(name: str) -> bool:
    """Whether a file has the name of one of DeepSpeed's parts of a model, ZeRO stage 3."""
    return name.endswith(".pt") and re.fullmatch(ZERO_3_FILE, name) is not None


def find_parts(folder: Path) -> CheckpointError | None:
    """Return the error for a folder whose weights another program must join or convert.

    None for other folders.
    """
    distributed = _distributed_folder(folder)
    if distributed is not None:
        return distributed_error(distributed, folder)
    if any(re.fullmatch(DEEPSPEED_FILE, name) for name in _names(folder, "*.pt")):
        return deepspeed_error(folder, folder.parent)
    below = _names(folder, "global_step*/*.pt")
    has_parts = any(re.fullmatch(DEEPSPEED_FILE, name) for name in below)
    if has_parts or (folder / "zero_to_fp32.py").is_file():
        return deepspeed_error(folder, folder)
    patterns = (MEGATRON_FILE, f"mp_rank_*/{MEGATRON_FILE}", f"iter_*/mp_rank_*/{MEGATRON_FILE}")
    if any(_files(folder, pattern) for pattern in patterns):
        return CheckpointError(f"{folder} is a {MEGATRON}.", CONVERT_MEGATRON)
    for name in _names(folder, "consolidated*"):
        if re.fullmatch(META_FILE, name):
            program, hint = META_FORMAT
            return CheckpointError(f"{folder} has {name}: it is in {program}.", hint)
    return None


def distributed_error(parts: Path, folder: Path) -> CheckpointError:
    """Return the error for a checkpoint of `torch.distributed.checkpoint`.

    Args:
        parts: The folder with its parts.
        folder: The folder with its config.
    """
    words = ["python", "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch"]
    command = shlex.join([*words, str(parts), str(folder / "pytorch_model.bin")])
    kind = f"a distributed checkpoint of torch ({DISTRIBUTED} files), as FSDP saves it"
    message = f"{parts} is {kind}."
    return CheckpointError(message, f"Join its parts: {command}")


def deepspeed_error(found: Path, folder: Path) -> CheckpointError:
    """Return the error for DeepSpeed's files in `found`; its script is in `folder`."""
    enter = f"cd {shlex.quote(str(folder))}"
    command = f"{enter} && python zero_to_fp32.py . joined && cp *.json joined"
    message = f"{found} is a {DEEPSPEED}, whose weights are in parts."
    hint = f"Join them with the script that DeepSpeed saved next to them: {command}"
    return CheckpointError(message, hint)


def check_training_file(path: Path) -> None:
    """Check that a file has not the name of a training run's state, or of a part of a model.

    Raises:
        CheckpointError: It has such a name.
    """
    if is_training_state(path.name):
        state = "the state of a training run, such as that of its optimizer"
        message = f"{path} is {state}: it contains no model."
        raise CheckpointError(message, "Pass the folder or the file with the model's weights.")
    if _is_zero_3(path.name):
        raise deepspeed_error(path, path.parent.parent)
    if path.name == MEGATRON_FILE:
        raise CheckpointError(f"{path} is a part of a {MEGATRON}.", CONVERT_MEGATRON)


def check_content(content: Mapping[Any, Any], path: Path) -> None:
    """Check that an unpickled training checkpoint contains a complete model of transformers.

    Raises:
        CheckpointError: It does not.
    """
    if "param_groups" in content and "state" in content:
        message = f"{path} contains the state of an optimizer, not a model."
        raise CheckpointError(message, "Pass the folder or the file with the model's weights.")
    if "checkpoint_version" in content and isinstance(content.get("model"), Mapping):
        raise CheckpointError(f"{path} is a part of a {MEGATRON}.", CONVERT_MEGATRON)
    if "ds_version" in content:
        is_parallel = content.get("mp_world_size") not in (None, 1)
        if is_parallel or _is_partitioned(content.get("module")):
            raise deepspeed_error(path, path.parent.parent)


def _is_partitioned(states: Any) -> bool:
    """Whether tensors of a DeepSpeed checkpoint are elsewhere: there are none, or empty ones."""
    if states is None:
        return True
    if not isinstance(states, Mapping):
        return False
    return any(getattr(value, "shape", None) == (0,) for value in states.values())


def find_program(path: Path) -> str | None:
    """Return what wrote a file of `torch.save`, as a noun; None if it is not known.

    It is found by texts in the pickle, which is not executed.
    """
    import zipfile  # imported at use: most checkpoints are not PyTorch files

    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            with archive.open(name) as file:
                text = file.read(MAX_PICKLE)
    except (OSError, StopIteration, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        return None
    for mark, program in MARKS.items():
        if mark in text:
            return program
    return None


def save_state_command(path: Path, key: str) -> str:
    """Return the command that saves only the tensors under a key of a file of `torch.save`.

    The command executes code in the file.
    """
    output = str(path.with_name("pytorch_model.bin"))
    load = f"torch.load({str(path)!r}, map_location='cpu', weights_only=False)[{key!r}]"
    code = f"import torch; torch.save({load}, {output!r})"
    return shlex.join(["python", "-c", code])


def _distributed_folder(folder: Path) -> Path | None:
    """Return the folder with the model's parts of a distributed checkpoint; None if none has."""
    if _files(folder, f"*{DISTRIBUTED}"):
        return folder
    for path in _files(folder, f"*/*{DISTRIBUTED}"):
        if "optim" not in path.parent.name:
            return path.parent
    return None


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern))


def _names(folder: Path, pattern: str) -> list[str]:
    return [path.name for path in _files(folder, pattern)]
