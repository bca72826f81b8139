"""Names of tensors of wrapped models, and in the formats of other programs.

DataParallel, torch.compile, FSDP, DeepSpeed and Lightning keep the model in an attribute, so its
tensors' names have the attribute's name in them. Names without it are those that transformers
loads.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from ctxextend.checkpoints.safetensors_file import TensorFile
from ctxextend.checkpoints.training_files import MEGATRON_FORMAT, META_FORMAT
from ctxextend.errors import CheckpointError

# Attributes that no model of transformers has: they are removed anywhere in a name.
ATTRIBUTES = (
    "_orig_mod",  # torch.compile
    "_fsdp_wrapped_module",
    "_fpw_module",  # FSDP before torch 2.0
    "_checkpoint_wrapped_module",  # activation checkpointing
    "_forward_module",  # Lightning's Fabric, and DeepSpeed in Lightning
)
# Patterns are compiled at use: most checkpoints need none of them.
ATTRIBUTE = rf"(?<![^.])(?:{'|'.join(ATTRIBUTES)})\."
# Of DataParallel and DeepSpeed. Models may have this attribute: only removed if all names have it.
MODULE = "module."
MODEL_PREFIX = "model."  # of Lightning modules; many models have it too, see `without_model`
# What follows `MODEL_PREFIX` only in a wrapped model: its own prefix, its head, or modules of types
# without that prefix.
WRAPPED_MODEL = (
    r"model\.(?:model|transformer|gpt_neox|gpt_neox_japanese|bert|roberta|nomic_bert|gte|esmc"
    r"|lm_heads?|embed_out|proj_out|score|classifier|qa_outputs"
    r"|h|blocks|wte|word_embeddings|(?:encoder|decoder)\.block)\."
)
FLAT_PARAMETER = r"(?m)^(?:.*\.)?_?flat_param(?:_\d+)?$"  # parameters that FSDP joined

# Parts of names that only the format of another program has, with the format and what converts it.
META_NAME = r"(?m)^layers\.\d+\.attention\.wq\.weight$"
MEGATRON_NAME = r"(?m)^.*\.(?:linear_qkv|query_key_value)\.weight$"
FOREIGN_FORMATS = (
    ("attention.wq.", META_NAME, META_FORMAT),
    (".self_attention.linear_qkv.", MEGATRON_NAME, MEGATRON_FORMAT),
    ("language_model.encoder.layers.", MEGATRON_NAME, MEGATRON_FORMAT),
    ("language_model.transformer.layers.", MEGATRON_NAME, MEGATRON_FORMAT),
)

# Parts of names in models with adapters that are not merged.
PEFT = ("base_model.", ".lora_", ".base_layer.")
MAX_PREFIX = 3  # parts of a prefix: an attribute of an attribute of an attribute


def plain_names(names: Iterable[str], where: str) -> dict[str, str]:
    """Return the name without wrappers of every stored name.

    Args:
        names: The stored names.
        where: The file, for messages.

    Raises:
        CheckpointError: Two names become one.
    """
    plain = {name: re.sub(ATTRIBUTE, "", name) for name in names}
    while plain and all(name.startswith(MODULE) for name in plain.values()):
        plain = {stored: name.removeprefix(MODULE) for stored, name in plain.items()}
    _check_different(plain, where)
    return plain


def without_wrappers(files: Mapping[str, TensorFile], where: str) -> dict[str, TensorFile]:
    """Return weights files with the plain names of their tensors.

    Args:
        files: The files by name.
        where: What has them, for messages.

    Raises:
        CheckpointError: Names are those of another format, or two names become one.
    """
    names = [name for file in files.values() for name in file.entries]
    joined = "\n".join(names)  # one search in a text is faster than one in each of many names
    check_names(joined, where)
    if joined.startswith(MODULE) or any(f"{attribute}." in joined for attribute in ATTRIBUTES):
        return renamed(files, plain_names(names, where))
    return dict(files)


def without_prefix(
    files: Mapping[str, TensorFile], prefix: str, where: str
) -> dict[str, TensorFile]:
    """Return weights files without a prefix that all names have.

    Raises:
        CheckpointError: Two names become one.
    """
    plain = {name: name.removeprefix(prefix) for file in files.values() for name in file.entries}
    _check_different(plain, where)
    return renamed(files, plain)


def common_prefix(names: Collection[str], tables: Collection[str]) -> str:
    """Return what precedes all names, if one of them is else that of a table; or an empty text."""
    prefix = ""
    for part in next(iter(names), "").split(".")[:MAX_PREFIX]:
        prefix += f"{part}."
        if not all(name.startswith(prefix) for name in names):
            return ""
        if any(f"{prefix}{table}" in names for table in tables):
            return prefix
    return ""


def has_adapters(names: Collection[str]) -> bool:
    """Whether tensors are those of a model with adapters of PEFT that are not merged."""
    return any(part in name for part in PEFT for name in names)


def renamed(files: Mapping[str, TensorFile], plain: Mapping[str, str]) -> dict[str, TensorFile]:
    """Return weights files with other names of tensors, without a change to their bytes."""
    if all(stored == name for stored, name in plain.items()):
        return dict(files)
    return {path: file.with_names(plain) for path, file in files.items()}


def removed_wrappers(files: Iterable[TensorFile]) -> list[str]:
    """Return what was removed from names in weights files, such as ``_orig_mod.``, in order."""
    found = dict[str, None]()
    for file in files:
        for name, stored in file.stored_names.items():
            attributes = re.findall(ATTRIBUTE, stored)
            rest = re.sub(ATTRIBUTE, "", stored).removesuffix(name)
            found |= dict.fromkeys(attributes)
            for part in rest.split(".")[:-1]:
                found[f"{part}."] = None
    return list(found)


def is_wrapped_model(names: Collection[str]) -> bool:
    """Whether `MODEL_PREFIX` precedes all names, and they are those of a model of transformers."""
    if not all(name.startswith(MODEL_PREFIX) for name in names):
        return False
    return any(re.match(WRAPPED_MODEL, name) for name in names)


def check_names(joined: str, where: str) -> None:
    """Check that names are those of transformers.

    Args:
        joined: The names, one a line.
        where: What has them, for messages.

    Raises:
        CheckpointError: They are those of another format.
    """
    flat = _find(FLAT_PARAMETER, joined, part="flat_param")
    if flat is not None:
        message = f"{where}: {flat:.200} is a flat parameter of FSDP, which joins many tensors."
        hint = (
            "Save the full state in the program that wrote it, for example with save_model of "
            "transformers' Trainer."
        )
        raise CheckpointError(message, hint)
    for part, pattern, (program, hint) in FOREIGN_FORMATS:
        name = _find(pattern, joined, part)
        if name is not None:
            message = f"{where} has the tensor {name:.200}: it is in {program}."
            raise CheckpointError(message, hint)


def _find(pattern: str, joined: str, part: str) -> str | None:
    """Return the first name that matches; None without the part that all matches contain.

    To look for the part first is faster: most checkpoints do not have it.
    """
    if part not in joined:
        return None
    match = re.search(pattern, joined)
    if match is None:
        return None
    return match[0]


def _check_different(plain: Mapping[str, str], where: str) -> None:
    """Raise CheckpointError if two stored names have the same plain name."""
    stored_of = dict[str, str]()
    for stored, name in plain.items():
        other = stored_of.setdefault(name, stored)
        if other != stored:
            both = f"as {other!r:.200} and as {stored!r:.200}"
            message = f"{where} contains {name!r:.200} twice, {both}."
            raise CheckpointError(message, "Save the model again, without its wrappers.")
