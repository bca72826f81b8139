"""What a config says of positions that ctxextend does not know.

They are those of a folder's own code, or of an unknown model type.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.errors import UnsupportedModelError
from ctxextend.families.registry import FAMILIES, MAX_CONFIG_DEPTH, is_known
from ctxextend.notes import Code, Level, Note
from ctxextend.positions.facts import ALIBI, ROTARY
from ctxextend.settings import CheckpointRef

if TYPE_CHECKING:
    from ctxextend.opening.opened_model import OpenedModel

# Parts of config keys that only models with such positions have.
ALIBI_KEY = re.compile(r"(?:^|_)alibi(?:_|$)")
ROTARY_KEY = re.compile(r"(?:^|_)(?:rope|rotary)(?:_|$)")
# Keys whose value names the positions, such as ``position_embedding_type``.
KIND_KEY = re.compile(
    r"(?:pos|position|positional)_(?:emb|embd|embeddings?|encodings?)(?:_type|_2d)?"
)
# Values of these keys; ``absolute`` is only the default of BERT's config.
TABLE_KINDS = ("learned", "learned_absolute")
ANGLE_BUFFERS = "inv_freq"  # in the names of buffers that only rotary positions have
MAX_KEYS = 4
MAX_TEXT = 40  # characters of a value

RUN_CODE = "Load it with trust_remote_code=True, which runs that code."
ALIBI_ADVICE = (
    "ALiBi has no table and no length to resize: for longer texts, raise model_max_length in "
    "tokenizer_config.json."
)
READ_CODE = "The code and the model card say which lengths it reads, and with which settings."


def own_class(config: Mapping[str, Any]) -> str | None:
    """Return the class in ``auto_map`` that loads a folder with its own code.

    None if transformers' classes load it: an own tokenizer or processor does not count.
    """
    mapped = config.get("auto_map")
    if not isinstance(mapped, Mapping):
        return None
    classes = [name for key, name in mapped.items() if key.startswith("AutoModel")]
    classes.append(mapped.get("AutoConfig"))
    for name in classes:
        if isinstance(name, str) and name:
            return name
    return None


def stated_positions(
    config: Mapping[str, Any], path: str = "", depth: int = MAX_CONFIG_DEPTH
) -> dict[str, Any]:
    """Return the config keys, with dots, that say what positions are: rotary, ALiBi or others.

    Args:
        config: The config; those inside it are searched too.
        path: Its own keys, with dots.
        depth: Down to which configs inside it are searched.
    """
    found = dict[str, Any]()
    kinds = {key: value for key, value in config.items() if KIND_KEY.fullmatch(key)}
    if not any(kind in TABLE_KINDS for kind in kinds.values()):
        for key, value in (*_settings_of(config, ALIBI_KEY), *_settings_of(config, ROTARY_KEY)):
            found[f"{path}{key}"] = value
    for key, value in config.items():
        is_name = isinstance(value, str) and value not in ("absolute", "none", *TABLE_KINDS)
        if key in kinds and (is_name or value is True):
            found[f"{path}{key}"] = value
        if isinstance(value, Mapping) and depth and not ROTARY_KEY.search(key):
            found |= stated_positions(value, f"{path}{key}.", depth - 1)
    return found


def _settings_of(config: Mapping[str, Any], pattern: re.Pattern[str]) -> list[tuple[str, Any]]:
    """Return the settings of one kind of positions; none if one of them turns it off.

    It is false, or a share of 0 of each head; the others are defaults.
    """
    settings = [(key, value) for key, value in config.items() if pattern.search(key)]
    numbers = [value for _, value in settings if isinstance(value, bool | int | float)]
    return settings if all(numbers) else []


def named_scheme(stated: Mapping[str, Any], names: Collection[str] = ()) -> str:
    """Return ``ALiBi`` or ``rotary`` if stated keys or tensor names say so; else an empty text."""
    keys = [path.rpartition(".")[2] for path in stated]
    values = [value for value in stated.values() if isinstance(value, str)]
    if "alibi" in values or any(ALIBI_KEY.search(key) for key in keys):
        return ALIBI
    if any(ROTARY_KEY.search(text) for text in (*keys, *values)):
        return ROTARY
    if any(ANGLE_BUFFERS in name for name in names):
        return ROTARY
    return ""


def list_keys(stated: Mapping[str, Any]) -> str:
    """Return keys with their values as text, only the first ones if there are many."""
    shown = list[str]()
    for key, value in list(stated.items())[:MAX_KEYS]:
        text = value if isinstance(value, str) else json.dumps(value)
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]}…"
        shown.append(f"{key} {text}")
    if len(stated) > MAX_KEYS:
        shown.append(f"{len(stated) - MAX_KEYS} more")
    return ", ".join(shown)


def describe_code(config: Mapping[str, Any], file: str) -> str:
    """Say that a folder has its own code, and what its config states of the positions."""
    text = (
        f"{file} has auto_map: the positions are those of the folder's own code "
        f"({own_class(config):.100}), which may differ from those of transformers"
    )
    stated = stated_positions(config)
    if stated:
        text += f"; the config states {list_keys(stated)}"
    return f"{text}."


def advise_code(config: Mapping[str, Any], names: Collection[str] = ()) -> str:
    """Say what to do with a folder whose own code has positions that cannot be resized."""
    scheme = named_scheme(stated_positions(config), names)
    advice = ALIBI_ADVICE if scheme == ALIBI else READ_CODE
    return f"{RUN_CODE} {advice}"


def refuse_code(
    config: Mapping[str, Any],
    file: str,
    *,
    names: Collection[str] = (),
    found: str = "",
    usable: str | None = None,
) -> NoReturn:
    """Refuse a folder whose own code has its positions.

    Args:
        config: Its config.
        file: The path of the config.
        names: The names of its tensors.
        found: A sentence on what was found instead.
        usable: The model type as which the folder can be resized.

    Raises:
        UnsupportedModelError: Always.
    """
    hint = advise_code(config, names)
    if usable:
        hint += f" If the weights are those of transformers' own class, use --model-type {usable}."
    raise UnsupportedModelError(f"{describe_code(config, file)} {found}".rstrip(), hint)


def rewrites_model_type(checkpoint: Checkpoint, ref: CheckpointRef) -> bool:
    """Whether an output states the type that the user names, as transformers has no other."""
    if ref.table is not None or not checkpoint.has_config:
        return False
    stated = checkpoint.config.get("model_type")
    if stated is None:
        return True
    has_code = own_class(checkpoint.config) is not None
    return ref.model_type is not None and not is_known(stated) and not has_code


def with_type_note(model: "OpenedModel") -> "OpenedModel":
    """Return a model with a note on how an output is loaded, if the user named its type."""
    checkpoint = model.checkpoint
    named = model.ref.model_type
    stated = checkpoint.config.get("model_type")
    has_code = model.own_class is not None
    # The twin of a conversion has another type than its source.
    if stated is None or named != model.architecture.family.model_type:
        return model
    if stated == named and not has_code:
        return model
    file = checkpoint.config_file
    if stated == named:
        note = (
            f"Planned for transformers' own {named} class: load the output without "
            "trust_remote_code=True."
        )
    elif rewrites_model_type(checkpoint, model.ref):
        note = f"The output's {file} has model_type {named} instead of {stated}."
    else:
        reader = "its own code (auto_map)" if has_code else "transformers"
        note = (
            f"{file} keeps model_type {stated}, and {reader} loads the output by it: to load it as "
            f"{named}, change that."
        )
    return model.with_notes(Note(Code.SOURCE, Level.NOTE, note))


def check_own_code(model: "OpenedModel") -> None:
    """Check that positions that are not in the weights are not those of the folder's own code.

    Raises:
        UnsupportedModelError: They are, and the user named no model type.
    """
    if not _has_unnamed_code(model):
        return
    checkpoint = model.checkpoint
    stated = checkpoint.config.get("model_type")
    refuse_code(
        checkpoint.config,
        checkpoint.config_file,
        names=checkpoint.weights.entries,
        usable=stated if stated in FAMILIES else None,
    )


def _has_unnamed_code(model: "OpenedModel") -> bool:
    """Whether positions are not in the weights, of own code whose type the user did not name."""
    if model.own_class is None or model.ref.model_type is not None:
        return False
    return any(table.name not in model.checkpoint.weights.entries for table in model.tables)


def resizable_ref(model: "OpenedModel") -> CheckpointRef:
    """Return the reference with which `resize` accepts a model.

    For a model with own code, it names the model type.
    """
    if _has_unnamed_code(model):
        return replace(model.ref, model_type=model.architecture.family.model_type)
    return model.ref
