"""How the model classes of transformers compute rotary frequencies, read from their source.

Transformers generates these classes from each other: nearly all of them have the same constructor,
and one of a few functions for settings without a rope type. Others are refused.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ctxextend.families.config_statements import SETTINGS
from ctxextend.families.schema import LENGTH
from ctxextend.families.transformers_source import (
    ConfigClass,
    UnclearSourceError,
    classes_with,
    model_sources,
)

COMPUTES = "compute_default_rope_parameters"  # the function for settings without a rope type
ROPE_TYPES_OF_TRANSFORMERS = "ROPE_INIT_FUNCTIONS["
KNOWN_KEYS = {LENGTH, SETTINGS, "layer_types"}  # of the config, that constructors read

SIZE = "getattr(config, 'head_dim', None) or config.hidden_size // config.num_attention_heads"
SHARES = (
    "config.rope_parameters.get('partial_rotary_factor', 1.0)",
    "config.rope_parameters[layer_type].get('partial_rotary_factor', 1.0)",
)
# What the function may assign, by variable.
KNOWN_VALUES: Mapping[str, tuple[str, ...]] = {
    "base": (
        "config.rope_parameters['rope_theta']",
        "config.rope_parameters[layer_type]['rope_theta']",
    ),
    "head_dim": (SIZE,),
    "partial_rotary_factor": SHARES,
    "dim": (SIZE, "int(head_dim * partial_rotary_factor)", "int(dim * partial_rotary_factor)"),
    "attention_factor": ("1.0",),
}
INVERSE = re.compile(r"1\.0 / base \*\* \(torch\.arange\(0, dim, 2, .*\) / dim\)")


@dataclass(frozen=True)
class FrequencyClass:
    """How a model class computes frequencies."""

    by_layer_type: bool  # whether layers of each type have separate settings
    reads_share: bool  # whether a share of each head can be rotated
    scales: bool  # whether it accepts other rope types than ``default``


def find_frequency_class(config: ConfigClass) -> FrequencyClass | None:
    """Return how the model of a config class computes its frequencies.

    None if it does not read the settings.

    Raises:
        UnclearSourceError: It computes them in a way that the rule does not cover.
    """
    sources = list(model_sources(config))
    if not sources:
        raise UnclearSourceError(f"transformers has no model class for {config.name}")
    found = [node for node in classes_with(COMPUTES, sources) if SETTINGS in ast.unparse(node)]
    own = [node for node in found if _accepted_config(node) == config.name]
    readings = {_read_class(node) for node in own or found}
    if len(readings) == 1:
        return readings.pop()
    if readings:
        message = f"several classes may compute the frequencies of {config.name}"
        raise UnclearSourceError(message)
    if any(SETTINGS in source for source in sources):
        raise UnclearSourceError(f"its model reads {SETTINGS} in a way that is unknown")
    return None


def _functions(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {
        statement.name: statement
        for statement in node.body
        if isinstance(statement, ast.FunctionDef)
    }


def _accepted_config(node: ast.ClassDef) -> str:
    """Return the config class that the constructor of a class accepts; empty if none is stated."""
    constructor = _functions(node).get("__init__")
    if constructor is None or len(constructor.args.args) < 2:
        return ""
    annotation = constructor.args.args[1].annotation
    return "" if annotation is None else ast.unparse(annotation)


def _read_class(node: ast.ClassDef) -> FrequencyClass:
    """Return how a class computes frequencies.

    Raises:
        UnclearSourceError: It is of no known form.
    """
    functions = _functions(node)
    constructor = functions.get("__init__")
    if constructor is None:
        raise UnclearSourceError(f"{node.name} has no constructor")
    values = dict(_assignments(functions[COMPUTES]))
    for variable, value in values.items():
        is_inverse = variable == "inv_freq" and INVERSE.fullmatch(value)
        if not is_inverse and value not in KNOWN_VALUES.get(variable, ()):
            raise UnclearSourceError(f"{node.name} computes `{variable} = {value}`")
    others = [name for name in functions if name.startswith("compute_") and name != COMPUTES]
    if others:
        raise UnclearSourceError(f"{node.name} has {others[0]}()")
    text = ast.unparse(constructor)
    for key in re.findall(r"\bconfig\.(\w+)", text):
        if key not in KNOWN_KEYS:
            raise UnclearSourceError(f"{node.name} reads {key}")
    is_refusing = any(isinstance(inner, ast.Raise) for inner in ast.walk(constructor))
    if not is_refusing and ROPE_TYPES_OF_TRANSFORMERS not in text:
        raise UnclearSourceError(f"{node.name} does not use the rope types of transformers")
    arguments = functions[COMPUTES].args.args
    return FrequencyClass(
        by_layer_type=any(argument.arg == "layer_type" for argument in arguments),
        reads_share=any(value in SHARES for value in values.values()),
        scales=not is_refusing,
    )


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield the variables that a function assigns, with what it assigns."""
    for statement in function.body:
        if isinstance(statement, ast.Assign):
            yield ast.unparse(statement.targets[0]), ast.unparse(statement.value)
