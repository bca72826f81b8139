"""Resize small models, and compute what an engine should return for them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend import convert, resize
from ctxextend.families.registry import FAMILIES
from ctxextend.families.schema import LearnedTable, Positions, RotaryFacts, SinusoidalTable
from tests.engines.drivers import transformers_driver
from tests.engines.models import NEW, THETA, auto_class, make_model, token_ids

Values = NDArray[np.float32]

# Dialects of rotary settings.
NEW_ONLY = "new"  # ``rope_parameters``
BOTH = "both"  # also ``rope_scaling`` and the keys next to it
NO_DIALECT = "-"  # positions without rotary settings

UNSCALED = "unscaled"  # the outcome of an engine that ignores the method

# Methods of cases, with these suffixes after "+".
LIMITS = "limits"
KEPT_PREFIX = "kept-"  # a base with scaled settings, whose type stays
OTHER_BASES = (10_000.0, 1_000_000.0)  # defaults of engines
NEW_ONLY_METHODS = ("yarn", "theta")  # that are also run in the new dialect alone
CONVERT_PREFIX = "from-"  # a conversion of this model type
N_CTX = "n_ctx"  # another key of the length, which some engines need
NO_HEAD = "no_head"  # a file of the base model, whose tensor names have no prefix
NOTHING = "nothing"  # a base of the new length: whether the engine computes what transformers does
LONGROPE = "longrope"  # a base of the new length, which is not resized
FACTOR = "attention_factor"  # with an explicit one, which is not the default

# All settings of ``rope_scaling`` that a class of transformers 4 accepts, by types of model and
# rope.
EXACT_OLD_KEYS = {
    ("phi3", "longrope"): ("type", "short_factor", "long_factor"),
    ("olmo", "linear"): ("type", "factor"),
    ("olmo", "dynamic"): ("type", "factor"),
    ("olmo2", "linear"): ("type", "factor"),
    ("olmo2", "dynamic"): ("type", "factor"),
}
# Source types of conversions, by the type of the output.
CONVERSIONS = {"gpt_neox": ("gpt2",), "falcon": ("gpt2",), "roformer": ("bert",)}
SCHEMES = {"gpt_neox": "rotary", "falcon": "alibi", "roformer": "rotary"}


@dataclass(frozen=True)
class Case:
    """A model type, what is done to it, and the dialect of the output."""

    model_type: str  # of the output
    method: str
    dialect: str = NO_DIALECT


@dataclass(frozen=True)
class Prepared:
    """A folder that an engine should read, and values of transformers, shape (tokens, size)."""

    folder: Path
    auto_class: str
    reference: Values
    # What an engine computes that ignores the method or a setting, by the outcome.
    others: Mapping[str, Values]


def cases_of(model_type: str) -> Iterator[Case]:
    """Yield the cases of a model type: every method that applies, in every dialect."""
    for positions in FAMILIES[model_type].tables:
        yield from _cases_of_positions(model_type, positions)
        break
    for source_type in CONVERSIONS.get(model_type, ()):
        dialect = BOTH if model_type == "gpt_neox" else NO_DIALECT
        yield Case(model_type, f"{CONVERT_PREFIX}{source_type}", dialect)
    if model_type == "gpt2":
        yield Case(model_type, f"bands+{N_CTX}")
        yield Case(model_type, f"bands+{NO_HEAD}+{N_CTX}")


def _cases_of_positions(model_type: str, positions: Positions) -> Iterator[Case]:
    if positions.rope is None:
        yield Case(model_type, NOTHING)
        yield Case(model_type, _table_method(positions))
        return
    if not positions.rope.methods:
        yield Case(model_type, NOTHING)
        yield Case(model_type, "limits")
        return
    dialects = (BOTH, NEW_ONLY) if has_old_dialect(positions.rope) else (NEW_ONLY,)
    yield Case(model_type, NOTHING, dialects[0])
    for method in positions.rope.methods:
        yield Case(model_type, method, dialects[0])
    if len(dialects) > 1:
        for method in NEW_ONLY_METHODS:
            if method in positions.rope.methods:
                yield Case(model_type, method, NEW_ONLY)
    if "yarn" in positions.rope.methods:
        yield Case(model_type, f"yarn+{FACTOR}", dialects[0])
    if len(positions.rope.theta) > 1:
        return
    if "yarn" in positions.rope.methods:
        yield Case(model_type, f"{KEPT_PREFIX}llama3", dialects[0])
    yield Case(model_type, LONGROPE, dialects[0])
    if model_type == "llama":
        for kept in ("yarn", "dynamic", "linear"):
            yield Case(model_type, f"{KEPT_PREFIX}{kept}", dialects[0])


def _table_method(positions: Positions) -> str:
    """Return the method of positions without rotary settings."""
    if isinstance(positions, LearnedTable):
        return "bands"
    if isinstance(positions, SinusoidalTable):
        return "formula"
    return LIMITS


def has_old_dialect(rope: RotaryFacts) -> bool:
    """Whether ``rope_scaling`` can say what ``rope_parameters`` says."""
    return rope.old.reads_scaling and not rope.old.scales_local


def prepare(case: Case, folder: Path) -> Prepared:
    """Make the output of a case and its references, in a folder."""
    base = folder / "base"
    output = folder / "output"
    unscaled = folder / "unscaled"
    kind, *suffixes = case.method.split("+")
    if kind.startswith(CONVERT_PREFIX):
        make_model(base, kind.removeprefix(CONVERT_PREFIX))
        convert(base, SCHEMES[case.model_type], to=NEW, output=output)
    elif kind == LONGROPE:
        make_model(output, case.model_type, kept=LONGROPE, length=NEW)
    elif kind == NOTHING:
        make_model(output, case.model_type, length=NEW)
    elif kind.startswith(KEPT_PREFIX):
        make_model(base, case.model_type, kept=kind.removeprefix(KEPT_PREFIX))
        resize(base, NEW, output=output)
    else:
        make_model(base, case.model_type, without_head=NO_HEAD in suffixes)
        resize(base, NEW, None if kind == LIMITS else kind, output=output)
    if N_CTX in suffixes:
        edit_config(output, n_ctx=NEW)
    others = dict[str, Path]()
    if kind == "bands":
        others[UNSCALED] = unscaled
        resize(base, NEW, "last", output=unscaled)
    elif case.dialect != NO_DIALECT:
        for name, settings in _misread_settings(output, case.model_type).items():
            if settings == read_config(output)["rope_parameters"]:
                continue
            others[name] = folder / name
            _copy_folder(output, others[name])
            edit_config(others[name], rope_parameters=settings)
    if FACTOR in suffixes:
        others[f"ignores {FACTOR}"] = folder / FACTOR
        _copy_folder(output, folder / FACTOR)
        _state_attention_factor(output, case.model_type)
    name = auto_class(case.model_type).__name__
    reference = reference_values(output, name)
    if case.dialect == BOTH:
        add_old_dialect(output, case.model_type)
        difference = float(np.abs(reference - reference_values(output, name)).max())
        if difference:
            raise AssertionError(f"{case}: the dialects differ by {difference} in transformers")
    return Prepared(
        folder=output,
        auto_class=name,
        reference=reference,
        others={what: reference_values(path, name) for what, path in others.items()},
    )


def reference_values(folder: Path, auto_class_name: str) -> Values:
    """Return the values of transformers 5 for the inputs of all runs."""
    values, _ = transformers_driver.run(
        folder, token_ids().numpy(), {"auto_class": auto_class_name}
    )
    return values


def add_old_dialect(folder: Path, model_type: str) -> None:
    """Write the rotary settings of config.json also as files of before transformers 5 have them."""
    rope = _rope_of(model_type)
    main, *local = rope.theta
    stated = read_config(folder)["rope_parameters"]
    settings = dict(stated[main] if main else stated)
    theta = settings.pop("rope_theta")
    changes = {rope.old.theta_keys.get(main, "rope_theta"): theta}
    for layers in local:
        key = rope.old.theta_keys.get(layers)
        if key:
            changes[key] = stated[layers]["rope_theta"]
    if "partial_rotary_factor" in settings:
        changes[rope.old.partial_key] = settings.pop("partial_rotary_factor")
    if settings["rope_type"] != "default":
        # CTranslate2 reads the base only here, if there are settings.
        old = {**settings, "type": settings["rope_type"], "rope_theta": theta}
        keys = EXACT_OLD_KEYS.get((model_type, settings["rope_type"]), old)
        changes["rope_scaling"] = {key: old[key] for key in keys}
    edit_config(folder, **changes)


def _state_attention_factor(folder: Path, model_type: str) -> None:
    rope = _rope_of(model_type)
    settings = read_config(folder)["rope_parameters"]
    layers = next(iter(rope.theta))
    scaled = settings[layers] if layers else settings
    scaled["attention_factor"] = 1.0
    edit_config(folder, rope_parameters=settings)


def _misread_settings(folder: Path, model_type: str) -> dict[str, dict[str, Any]]:
    """Return the settings that an engine has which ignores those of a folder, by the outcome."""
    settings = read_config(folder)["rope_parameters"]
    default = _rope_of(model_type).theta
    if "" not in default:
        layers = {name: _unscaled(settings[name], theta) for name, theta in default.items()}
        return {UNSCALED: settings | layers}
    misread = {UNSCALED: _unscaled(settings, THETA)}
    for theta in sorted({default[""], *OTHER_BASES}):
        misread[f"{UNSCALED}, theta {theta:g}"] = _unscaled(settings, theta)
        if settings["rope_type"] != "default":
            misread[f"theta {theta:g}"] = settings | {"rope_theta": theta}
    return misread


def _unscaled(settings: Mapping[str, Any], theta: float) -> dict[str, Any]:
    unscaled = {"rope_type": "default", "rope_theta": theta}
    if "partial_rotary_factor" in settings:
        unscaled["partial_rotary_factor"] = settings["partial_rotary_factor"]
    return unscaled


def full_attention_settings(folder: Path) -> Mapping[str, Any] | None:
    """Return the rotary settings of the layers with full attention; None if there are none."""
    settings = read_config(folder).get("rope_parameters")
    if settings is None:
        return None
    full: Mapping[str, Any] = settings.get("full_attention", settings)
    return full


def _rope_of(model_type: str) -> RotaryFacts:
    for positions in FAMILIES[model_type].tables:
        if positions.rope is not None:
            return positions.rope
    raise ValueError(f"{model_type} has no rotary positions")


def _copy_folder(source: Path, copy: Path) -> None:
    """Copy config.json, and link the weights."""
    copy.mkdir()
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            (copy / path.name).hardlink_to(path)
        elif path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())


def read_config(folder: Path) -> dict[str, Any]:
    """Return the keys of config.json."""
    values: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return values


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of config.json."""
    values = read_config(folder) | changes
    (folder / "config.json").write_text(json.dumps(values, indent=2))
