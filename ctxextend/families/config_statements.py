"""What the config class of a rotary model type states about its settings.

Transformers generates most config classes from each other, so that they consist of the same few
statements. `read_statements` knows these, and refuses a class with any other one about rotary
settings.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ctxextend.families.transformers_source import ConfigClass, UnclearSourceError
from ctxextend.tables.rope_types import PARTIAL, TYPE

SETTINGS = "rope_parameters"
HEAD_DIM = "head_dim"
LATENT_DIM = "qk_rope_head_dim"  # of latent attention, which rotates a part of each head
ALIASES = "attribute_map"  # other names of keys

# Fields and attributes with these in their names change frequencies or choose positions, unless
# they are listed.
ABOUT_ROPE = re.compile("rope|rotary|theta|yarn|alibi|position_embedding_type")
KNOWN_FIELDS = {
    SETTINGS,
    LATENT_DIM,
    "rope_interleave",  # the order of rotated pairs
    "no_rope_layers",  # layers without positions
    "no_rope_layer_interval",
}
KNOWN_ATTRIBUTES = {"default_theta", "ignore_keys_at_rope_validation", "_rope_type_labels"}
BASES = {"PreTrainedConfig", "PretrainedConfig", "RotaryEmbeddingConfigMixin"}
CONSTRUCTORS = ("__init__", "__post_init__")

# Statements of constructors that leave the settings as they are.
KEEPING = {
    "self.rope_parameters = rope_parameters",
    "self.qk_head_dim = self.qk_nope_head_dim + self.qk_rope_head_dim",
    "self.qk_head_dim = qk_nope_head_dim + qk_rope_head_dim",
    "self.qk_rope_head_dim = qk_rope_head_dim",
    "self.rope_interleave = rope_interleave",
}
OTHER_LAYERS = "no_rope_layer"  # in statements about layers without positions
LATENT_HEAD = {
    "self.head_dim = self.qk_rope_head_dim",
    "self.head_dim = qk_rope_head_dim",
}
# Attributes that decide lengths and frequencies, and what constructors may set them to.
SIZE_ATTRIBUTES = re.compile(
    r"self\.(max_position_embeddings|hidden_size|num_attention_heads|head_dim|default_theta) "
)
STATED_SIZE = re.compile(r"self\.(\w+) = \1")
QUOTIENT = "self.head_dim = self.hidden_size // self.num_attention_heads"
COMPUTED_HEAD = {
    "self.head_dim = hidden_size // num_attention_heads",
    "self.head_dim = head_dim or hidden_size // num_attention_heads",
    "self.head_dim = head_dim if head_dim is not None else hidden_size // num_attention_heads",
    "self.head_dim = head_dim if head_dim is not None else self.hidden_size // "
    "self.num_attention_heads",
    "self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads",
    "self.head_dim = self.head_dim if self.head_dim is not None else self.hidden_size // "
    "self.num_attention_heads",
}


@dataclass(frozen=True)
class Statements:
    """What a config class states about its rotary settings."""

    config: ConfigClass
    share: float  # of each head that is rotated, by default
    settings: Mapping[str, Any] | None  # of a config that states none; None: the usual ones
    rotates_latent_part: bool  # whether the rotated size is that of `LATENT_DIM`
    sets_head: bool  # whether it computes the size of a head that the config does not state
    ignores_head: bool  # whether it computes the size of a head even if the config states it
    reads_old_keys: bool  # whether it reads ``rope_scaling`` and the keys next to it

    def unclear(self, what: str) -> UnclearSourceError:
        """Return the error for something in the class that the rule does not cover."""
        return _unclear(self.config, what)

    def default(self, field: str) -> Any:
        """Return the default of a field; None if it has none, or it is computed."""
        return _constant(self.config.fields.get(field))

    def size(self, field: str) -> int:
        """Return the default of a field that is an integer.

        Raises:
            UnclearSourceError: It has no such default.
        """
        value = self.default(field)
        if not isinstance(value, int):
            raise self.unclear(f"it states no default of {field}")
        return value

    def theta(self) -> float:
        """Return the default base of the frequencies.

        Raises:
            UnclearSourceError: It is not a number.
        """
        node = self.config.attributes.get("default_theta")
        if node is None:
            return 10_000.0
        value = _constant(node)
        if not isinstance(value, int | float):
            raise self.unclear("default_theta is not a number")
        return float(value)

    def aliases(self) -> Mapping[str, str]:
        """Return other names of keys that the class accepts, each with the key."""
        return _aliases(self.config)


def read_statements(config: ConfigClass) -> Statements:
    """Return what a config class states about its rotary settings.

    Raises:
        UnclearSourceError: It does more than to state defaults.
    """
    _check_names(config)
    _check_functions(config)
    _check_sizes(config)
    share = 1.0
    settings: Mapping[str, Any] | None = None
    variables = dict[str, ast.expr]()
    texts = set[str]()
    for statement in _constructor_statements(config):
        text = ast.unparse(statement)
        texts.add(text)
        if text in LATENT_HEAD or _keeps_settings(statement, text):
            continue
        stated_share = _default_share(text)
        variable = _dictionary_variable(statement)
        if stated_share is not None:
            share = stated_share
        elif variable is not None:
            variables |= variable
        else:
            settings = _unstated_settings(config, statement, variables)
    rotates_latent_part = bool(texts & LATENT_HEAD) or _aliases(config).get(HEAD_DIM) == LATENT_DIM
    return Statements(
        config=config,
        share=share,
        settings=settings,
        rotates_latent_part=rotates_latent_part,
        sets_head=any(f"self.{HEAD_DIM} = " in text for text in texts),
        ignores_head=QUOTIENT in texts and HEAD_DIM in config.fields,
        reads_old_keys="convert_rope_params_to_dict" not in config.functions,
    )


def _unclear(config: ConfigClass, what: str) -> UnclearSourceError:
    return UnclearSourceError(f"{config.name}: {what}")


def _check_names(config: ConfigClass) -> None:
    """Check the base classes, the fields and the attributes of a class.

    Raises:
        UnclearSourceError: One of them may change frequencies.
    """
    others = [base for base in config.bases if base not in BASES]
    if others:
        raise _unclear(config, f"it is a subclass of {', '.join(others)}")
    for name in config.fields:
        if ABOUT_ROPE.search(name) and name not in KNOWN_FIELDS:
            raise _unclear(config, f"the field {name} may change frequencies")
    for name in config.attributes:
        if ABOUT_ROPE.search(name) and name not in KNOWN_ATTRIBUTES:
            raise _unclear(config, f"the attribute {name} may change frequencies")


def _check_functions(config: ConfigClass) -> None:
    """Check the functions of a class, except its constructor.

    Raises:
        UnclearSourceError: One of them changes settings, or refuses some.
    """
    for name, function in config.functions.items():
        if name in CONSTRUCTORS:
            continue
        if name == "convert_rope_params_to_dict":
            body = [statement for statement in function.body if not _is_docstring(statement)]
            if [ast.unparse(statement) for statement in body] != ["return kwargs"]:
                raise _unclear(config, "it converts rotary settings itself")
            continue
        text = ast.unparse(function)
        is_validation = name.startswith("validate_") and TYPE not in text
        if SETTINGS in text and not is_validation:
            raise _unclear(config, f"{name}() uses {SETTINGS}")


def _check_sizes(config: ConfigClass) -> None:
    """Check what the constructor sets lengths and sizes to.

    Raises:
        UnclearSourceError: It computes one of them in an unknown way.
    """
    for statement in _constructor_statements(config):
        for inner in ast.walk(statement):
            if not isinstance(inner, ast.Assign | ast.AugAssign | ast.AnnAssign):
                continue
            text = ast.unparse(inner)
            if not SIZE_ATTRIBUTES.match(text) or STATED_SIZE.fullmatch(text):
                continue
            if text == QUOTIENT or text in COMPUTED_HEAD | LATENT_HEAD:
                continue
            raise _unclear(config, f"it sets `{text}`")


def _constructor_statements(config: ConfigClass) -> Iterator[ast.stmt]:
    for name in CONSTRUCTORS:
        if name in config.functions:
            yield from config.functions[name].body


def _keeps_settings(statement: ast.stmt, text: str) -> bool:
    """Whether a statement, with its text, leaves the rotary settings as they are."""
    if not ABOUT_ROPE.search(text) or _is_docstring(statement):
        return True
    if text.startswith(("super().__init__(", "super().__post_init__(")):
        return True
    is_about_other_layers = OTHER_LAYERS in text and SETTINGS not in text
    return text in KEEPING or is_about_other_layers


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _default_share(text: str) -> float | None:
    """Return the default share of each head that a statement states."""
    number = r"([0-9.]+)"
    for form in (
        rf"kwargs\.setdefault\('{PARTIAL}', {number}\)",
        rf"kwargs\['{PARTIAL}'\] = {number}",
    ):
        match = re.fullmatch(form, text)
        if match:
            return float(match.group(1))
    return None


def _dictionary_variable(statement: ast.stmt) -> dict[str, ast.expr] | None:
    """Return the variable that a statement sets to a dictionary."""
    target: ast.expr
    value: ast.expr | None
    if isinstance(statement, ast.AnnAssign):
        target = statement.target
        value = statement.value
    elif isinstance(statement, ast.Assign):
        target = statement.targets[0]
        value = statement.value
    else:
        return None
    if isinstance(target, ast.Name) and isinstance(value, ast.Dict):
        return {target.id: value}
    return None


def _unstated_settings(
    config: ConfigClass, statement: ast.stmt, variables: Mapping[str, ast.expr]
) -> dict[str, Any]:
    """Return the settings that a statement gives to a config that states none.

    Raises:
        UnclearSourceError: The statement does something else, or computes them.
    """
    value = _value_if_none(statement)
    if value is None:
        first_line = ast.unparse(statement).splitlines()[0]
        raise _unclear(config, f"`{first_line}` may change frequencies")
    if isinstance(value, ast.Name) and value.id in variables:
        value = variables[value.id]
    theta = config.attributes.get("default_theta")
    try:
        literal = ast.literal_eval(_WithTheta(theta).visit(value))
    except ValueError:
        message = f"{SETTINGS} of a config without any are computed"
        raise _unclear(config, message) from None
    if not isinstance(literal, dict):
        raise _unclear(config, f"{SETTINGS} of a config without any are no dictionary")
    return literal


def _value_if_none(statement: ast.stmt) -> ast.expr | None:
    """Return what a statement sets the settings to if the config states none."""
    if not isinstance(statement, ast.If) or statement.orelse or len(statement.body) != 1:
        return None
    if ast.unparse(statement.test) not in (f"self.{SETTINGS} is None", f"{SETTINGS} is None"):
        return None
    inner = statement.body[0]
    if isinstance(inner, ast.Assign) and ast.unparse(inner.targets[0]).endswith(SETTINGS):
        return inner.value
    return None


class _WithTheta(ast.NodeTransformer):
    """Replaces ``self.default_theta`` by the value that the class states."""

    def __init__(self, theta: ast.expr | None) -> None:
        self.theta = theta

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if self.theta is not None and ast.unparse(node) == "self.default_theta":
            return self.theta
        return node


def _aliases(config: ConfigClass) -> Mapping[str, str]:
    """Return other names of keys that a class accepts, each with the key.

    Raises:
        UnclearSourceError: They are computed.
    """
    table = config.attributes.get(ALIASES)
    if table is None:
        return {}
    try:
        names: dict[str, str] = ast.literal_eval(table)
    except ValueError:
        raise _unclear(config, f"{ALIASES} is computed") from None
    return names


def _constant(node: ast.expr | None) -> Any:
    """Return a value that is written out, also as a product, or the default of a checked field.

    ``4096 * 32`` is 131072, and ``interval(min=0)(default=2)`` is 2.
    """
    if isinstance(node, ast.Call):
        defaults = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
        return _constant(defaults[0]) if defaults else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left = _constant(node.left)
        right = _constant(node.right)
        return None if left is None or right is None else left * right
    return node.value if isinstance(node, ast.Constant) else None
