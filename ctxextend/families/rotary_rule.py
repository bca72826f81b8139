"""The rule that finds rotary positions of a model type in the source of the installed transformers.

A type is rotary if its config class has ``rope_parameters``, and its model computes its frequencies
from them as most types do. Almost all classes are copies of a few forms, since transformers
generates them from each other; a form that is not one of these is not guessed at.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctxextend.families.rows import THETA_METHOD, language_model, own_part
from ctxextend.families.schema import (
    LENGTH,
    SLIDING_LAYERS,
    Family,
    OldRotaryKeys,
    Part,
    RotaryFacts,
    RotaryPositions,
)
from ctxextend.families.transformers_source import (
    ConfigClass,
    classes_with,
    config_class,
    installed_types,
    model_sources,
)
from ctxextend.tables.rope_types import PARTIAL, THETA, TYPE

SETTINGS = "rope_parameters"
HEAD_DIM = "head_dim"
SPACED = "proportional"  # a rope type of which each model has another form
LATENT_DIM = "qk_rope_head_dim"
HEADS = ("hidden_size", "num_attention_heads")
TEXT_SIZE = "vocab_size"  # a field of the config of models that read tokens

# Fields with these in their names change frequencies or choose positions, unless they are listed.
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

# Statements of the constructor that leave the settings as they are stated.
KEEPING = {
    "self.rope_parameters = rope_parameters",
    "self.qk_head_dim = self.qk_nope_head_dim + self.qk_rope_head_dim",
    "self.qk_head_dim = qk_nope_head_dim + qk_rope_head_dim",
    "self.qk_rope_head_dim = qk_rope_head_dim",
    "self.rope_interleave = rope_interleave",
}
LATENT_HEAD = {
    "self.head_dim = self.qk_rope_head_dim",
    "self.head_dim = qk_rope_head_dim",
}
NO_ROPE_LAYERS = "no_rope_layer"  # layers without positions change no frequencies

# The language model of a multimodal model, and the tables of its parts, by age.
TEXT_CONFIG = "text_config"
PARTS_ATTRIBUTES = ("sub_configs_defaults", "sub_configs")
ANY_CONFIG = "AutoConfig"

# Of the model class that computes the frequencies.
READ_BY_CONSTRUCTOR = {LENGTH, SETTINGS, "layer_types"}
COMPUTES = "compute_default_rope_parameters"
SIZE = "getattr(config, 'head_dim', None) or config.hidden_size // config.num_attention_heads"
OWN_SHARE = "config.rope_parameters.get('partial_rotary_factor', 1.0)"
OWN_LAYER_SHARE = "config.rope_parameters[layer_type].get('partial_rotary_factor', 1.0)"
SHARES = (OWN_SHARE, OWN_LAYER_SHARE)
FORMS: Mapping[str, tuple[str, ...]] = {
    "base": (
        "config.rope_parameters['rope_theta']",
        "config.rope_parameters[layer_type]['rope_theta']",
    ),
    "dim": (SIZE, "int(head_dim * partial_rotary_factor)", "int(dim * partial_rotary_factor)"),
    "head_dim": (SIZE,),
    "partial_rotary_factor": SHARES,
    "attention_factor": ("1.0",),
}
INVERSE = re.compile(r"1\.0 / base \*\* \(torch\.arange\(0, dim, 2, .*\) / dim\)")


class UnclearSourceError(Exception):
    """A class that the rule does not cover, with the reason as a clause."""


@dataclass(frozen=True)
class RotaryModule:
    """How a model computes its frequencies."""

    by_layer_type: bool  # whether layers of each type have their own settings
    reads_share: bool  # whether a share of each head can be rotated
    scales: bool  # whether it accepts other rope types than ``default``


def rule_family(model_type: str, known: Mapping[str, Family]) -> Family | None:
    """Return the entry of a type of the installed transformers that the rule finds.

    None if it is not one.

    Args:
        model_type: As in config.json.
        known: The entries of all model types, for the language model of a multimodal one.

    Raises:
        UnclearSourceError: It has rotary settings, but its classes use them in another way.
    """
    config = config_class(model_type)
    if config is None:
        return None
    if SETTINGS not in config.fields:
        part = _text_part(config)
        if part is None or not _is_without_rows(part.model_type, known):
            return None
        return Family(model_type, parts=(part,))
    if TEXT_SIZE not in config.fields:
        return None
    return _rotary_family(config)


def _rotary_family(config: ConfigClass) -> Family:
    """Return the entry of a type with rotary settings.

    Raises:
        UnclearSourceError: Its classes are of a form that the rule does not cover.
    """
    stated = _Stated(config)
    module = _rotary_module(config)
    facts = RotaryFacts(methods=()) if module is None else stated.facts(module)
    return Family(
        config.model_type,
        tables=(RotaryPositions(rope=facts, aliases=stated.length_aliases()),),
        defaults=stated.sizes(facts.dim_key),
    )


# Multimodal models


def _text_part(config: ConfigClass) -> Part | None:
    """Return the language model of a multimodal model; None if it has another form.

    Of its parts, only the one in ``text_config`` reads tokens.
    """
    for attribute in PARTS_ATTRIBUTES:
        table = config.attributes.get(attribute)
        if not isinstance(table, ast.Dict):
            continue
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == TEXT_CONFIG:
                return _language_model(config, ast.unparse(value))
    return None


def _language_model(config: ConfigClass, entry: str) -> Part | None:
    """Return the part of a language model, by its entry in the table of parts."""
    if ANY_CONFIG in entry:
        default = re.search(r"model_type='([^']+)'", entry)
        if default is None:  # the constructor has it, before 5.13
            source = ast.unparse(config.node)
            default = re.search(rf"{TEXT_CONFIG} = CONFIG_MAPPING\['([^']+)'\]\(", source)
        return None if default is None else language_model(default.group(1))
    for model_type, name in installed_types().items():
        if name == entry:
            return own_part("text", TEXT_CONFIG, model_type)
    return None


def _is_without_rows(model_type: str, known: Mapping[str, Family]) -> bool:
    """Whether a type has positions, and none of them is a table of rows.

    Names of tables have a prefix in a multimodal model, which no config states.
    """
    family = known.get(model_type)
    return (
        family is not None
        and bool(family.tables)
        and not any(table.has_rows for table in family.tables)
    )


# The config class


class _Stated:
    """What a config class states about its rotary settings."""

    def __init__(self, config: ConfigClass) -> None:
        """Read the class.

        Raises:
            UnclearSourceError: It does more than to state defaults.
        """
        self.config = config
        self.share: float | None = None  # of each head that is rotated, by default
        self.settings: dict[str, Any] | None = None  # of a config that states none
        self.is_latent = False
        self.reads_old_keys = True
        self.sets_head = False
        self._literals = dict[str, Any]()  # variables of the constructor
        self._check_class()
        for name, function in config.functions.items():
            if name in ("__init__", "__post_init__"):
                for statement in function.body:
                    self._read(statement)
            elif name == "convert_rope_params_to_dict":
                self._read_conversion(function)
            elif name.startswith("validate_") and TYPE not in ast.unparse(function):
                continue  # it refuses no method
            elif SETTINGS in ast.unparse(function):
                raise self._unclear(f"{name}() uses {SETTINGS}")

    def _unclear(self, what: str) -> UnclearSourceError:
        return UnclearSourceError(f"{self.config.name}: {what}")

    def _check_class(self) -> None:
        """Check the base classes, the fields and the attributes."""
        others = [base for base in self.config.bases if base not in BASES]
        if others:
            raise self._unclear(f"it is a subclass of {', '.join(others)}")
        for name in self.config.fields:
            if ABOUT_ROPE.search(name) and name not in KNOWN_FIELDS:
                raise self._unclear(f"the field {name} may change frequencies")
        for name in self.config.attributes:
            if ABOUT_ROPE.search(name) and name not in KNOWN_ATTRIBUTES:
                raise self._unclear(f"the attribute {name} may change frequencies")

    def _read(self, statement: ast.stmt) -> None:
        """Read a statement of the constructor.

        Raises:
            UnclearSourceError: It changes the rotary settings in another way than most classes.
        """
        text = ast.unparse(statement)
        if "self.head_dim = " in text:
            self.sets_head = True
        if text in LATENT_HEAD:
            self.is_latent = True
            return
        if not ABOUT_ROPE.search(text) or _is_docstring(statement):
            return
        if text in KEEPING or _is_about_other_layers(text) or _is_super_call(statement):
            return
        share = _default_share(text)
        if share is not None:
            self.share = share
            return
        variable = _literal_variable(statement)
        if variable is not None:
            self._literals |= variable
            return
        value = _settings_if_none(statement)
        if value is None:
            raise self._unclear(f"`{text.splitlines()[0]}` may change frequencies")
        self.settings = self._literal(value)

    def _literal(self, value: ast.expr) -> dict[str, Any]:
        """Return settings that are written out, also as a variable."""
        if isinstance(value, ast.Name) and value.id in self._literals:
            value = self._literals[value.id]
        names = {"self.default_theta": self.config.attributes.get("default_theta")}
        try:
            literal = ast.literal_eval(_WithValues(names).visit(value))
        except ValueError:
            raise self._unclear(f"{SETTINGS} of a config without any are computed") from None
        assert isinstance(literal, dict)
        return literal

    def _read_conversion(self, function: ast.FunctionDef) -> None:
        """Read how the class converts the settings of files of before transformers 5."""
        body = [statement for statement in function.body if not _is_docstring(statement)]
        if [ast.unparse(statement) for statement in body] != ["return kwargs"]:
            raise self._unclear("it converts rotary settings itself")
        self.reads_old_keys = False

    def facts(self, module: RotaryModule) -> RotaryFacts:
        """Return how the classes read rotary settings."""
        base = RotaryFacts(
            partial=self._share(module),
            dim_key=LATENT_DIM if self._uses_latent_size() else HEAD_DIM,
            needs_dim=self._needs_head(),
        )
        if not self.reads_old_keys:
            base = base._replace(old=OldRotaryKeys(reads_scaling=False))
        if not module.scales:
            base = base._replace(methods=THETA_METHOD)
        nested = self.settings is not None and all(
            isinstance(value, dict) for value in self.settings.values()
        )
        if module.by_layer_type != nested:
            raise self._unclear("no settings for each type of layers are written out")
        theta = self._number("default_theta", 10_000.0)
        if self.settings is None:
            return base._replace(theta={"": theta})
        if nested:
            if any(layers.get(TYPE) == SPACED for layers in self.settings.values()):
                raise self._unclear(f"its settings are {SPACED}")
            return _by_layer(base, self.settings)
        if self.settings.get(TYPE) == SPACED:
            raise self._unclear(f"its settings are {SPACED}")
        defaults = _defaults(self.settings, theta)
        return base._replace(theta={"": theta}, defaults={"": defaults})

    def _share(self, module: RotaryModule) -> float:
        if self.share is None or self.share == 1.0:
            return 1.0
        if not module.reads_share:
            raise self._unclear(f"its model does not read {PARTIAL}")
        return self.share

    def _uses_latent_size(self) -> bool:
        return self.is_latent or self._names().get(HEAD_DIM) == LATENT_DIM

    def _names(self) -> Mapping[str, str]:
        """Return other names of keys that the class accepts, each with the key."""
        table = self.config.attributes.get("attribute_map")
        names: dict[str, str] = ast.literal_eval(table) if isinstance(table, ast.Dict) else {}
        return names

    def length_aliases(self) -> tuple[str, ...]:
        """Return other names of the length.

        Raises:
            UnclearSourceError: The size of a head has other names.
        """
        names = self._names()
        for name, key in names.items():
            if key in (*HEADS, HEAD_DIM):
                raise self._unclear(f"{name} is another name of {key}")
        return tuple(name for name, key in names.items() if key == LENGTH)

    def _needs_head(self) -> bool:
        """Whether the size of a head stays None if the config does not state it."""
        is_none = HEAD_DIM in self.config.fields and self._field(HEAD_DIM) is None
        return is_none and not self.sets_head

    def sizes(self, dim_key: str) -> dict[str, int]:
        """Return the defaults of the length and of the size of a head.

        Raises:
            UnclearSourceError: A default is missing.
        """
        sizes = {LENGTH: self._size(LENGTH)}
        if dim_key == LATENT_DIM or self._field(HEAD_DIM) is not None:
            sizes[dim_key] = self._size(dim_key)
        else:
            sizes |= {key: self._size(key) for key in HEADS}
        return sizes

    def _size(self, key: str) -> int:
        value = self._field(key)
        if not isinstance(value, int):
            raise self._unclear(f"it states no default of {key}")
        return value

    def _field(self, key: str) -> Any:
        """Return the default of a field; None if it has none, or it is computed."""
        return _constant(self.config.fields.get(key))

    def _number(self, attribute: str, default: float) -> float:
        """Return the value of a class attribute."""
        node = self.config.attributes.get(attribute)
        if node is None:
            return default
        value = _constant(node)
        if not isinstance(value, int | float):
            raise self._unclear(f"{attribute} is not a number")
        return float(value)


def _defaults(settings: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """Return the settings of a config without any, without those that facts state.

    They include the type, since a key next to the settings changes none of them.
    """
    implied = {THETA: theta, PARTIAL: 1.0}
    return {key: value for key, value in settings.items() if implied.get(key) != value}


def _by_layer(base: RotaryFacts, settings: Mapping[str, Mapping[str, Any]]) -> RotaryFacts:
    """Return the facts of separate settings for each type of layers, the main layers first."""
    names = sorted(settings, key=lambda name: name == SLIDING_LAYERS)
    theta = dict[str, float]()
    defaults = dict[str, dict[str, Any]]()
    for name in names:
        theta[name] = float(settings[name].get(THETA, 10_000.0))
        defaults[name] = _defaults(settings[name], theta[name])
    local = tuple(name for name in names if name == SLIDING_LAYERS)
    return base._replace(theta=theta, defaults=defaults, local=local)


class _WithValues(ast.NodeTransformer):
    """Replaces attributes by the values that the class states for them."""

    def __init__(self, values: Mapping[str, ast.expr | None]) -> None:
        self.values = values

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        value = self.values.get(ast.unparse(node))
        return node if value is None else value


def _constant(node: ast.expr | None) -> Any:
    """Return a default that is written out, also as the default of a validated field.

    ``interval(min=0)(default=2)`` is 2.
    """
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == "default":
                return _constant(keyword.value)
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors = (_constant(node.left), _constant(node.right))  # 4096 * 32
        return factors[0] * factors[1] if None not in factors else None
    return node.value if isinstance(node, ast.Constant) else None


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_about_other_layers(text: str) -> bool:
    """Whether a statement is about the layers without positions, and not about settings."""
    return NO_ROPE_LAYERS in text and SETTINGS not in text


def _is_super_call(statement: ast.stmt) -> bool:
    """Whether a statement calls the constructor of PreTrainedConfig."""
    text = ast.unparse(statement)
    return text.startswith(("super().__init__(", "super().__post_init__("))


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


def _literal_variable(statement: ast.stmt) -> dict[str, ast.expr] | None:
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


def _settings_if_none(statement: ast.stmt) -> ast.expr | None:
    """Return the settings that a statement sets if the config states none."""
    if not isinstance(statement, ast.If) or statement.orelse or len(statement.body) != 1:
        return None
    if ast.unparse(statement.test) not in (f"self.{SETTINGS} is None", f"{SETTINGS} is None"):
        return None
    inner = statement.body[0]
    if isinstance(inner, ast.Assign) and ast.unparse(inner.targets[0]).endswith(SETTINGS):
        return inner.value
    return None


# The model class


def _rotary_module(config: ConfigClass) -> RotaryModule | None:
    """Return how the model of a config class computes its frequencies.

    None if it does not read the settings.

    Raises:
        UnclearSourceError: It computes them in a way that the rule does not cover.
    """
    sources = list(model_sources(config))
    if not sources:
        raise UnclearSourceError(f"transformers has no model class for {config.name}")
    found = [node for node in classes_with(COMPUTES, sources) if SETTINGS in ast.unparse(node)]
    own = [node for node in found if _config_of(node) == config.name]
    modules = {_read_module(node) for node in own or found}
    if len(modules) == 1:
        return modules.pop()
    if modules:
        raise UnclearSourceError(f"several classes could compute the frequencies of {config.name}")
    if any(SETTINGS in source for source in sources):
        raise UnclearSourceError(f"its model reads {SETTINGS} in a way that is unknown")
    return None


def _config_of(node: ast.ClassDef) -> str:
    """Return the config class that the constructor of a model class accepts."""
    for function in _functions(node):
        if function.name == "__init__" and len(function.args.args) > 1:
            annotation = function.args.args[1].annotation
            return "" if annotation is None else ast.unparse(annotation)
    return ""


def _functions(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [statement for statement in node.body if isinstance(statement, ast.FunctionDef)]


def _read_module(node: ast.ClassDef) -> RotaryModule:
    """Return how a class computes frequencies.

    Raises:
        UnclearSourceError: It is of no known form.
    """
    functions = {function.name: function for function in _functions(node)}
    computes = functions[COMPUTES]
    constructor = functions.get("__init__")
    if constructor is None:
        raise UnclearSourceError(f"{node.name} has no constructor")
    reads_share = False
    for statement in computes.body:
        if not isinstance(statement, ast.Assign):
            continue
        target = ast.unparse(statement.targets[0])
        value = ast.unparse(statement.value)
        is_inverse = target == "inv_freq" and INVERSE.fullmatch(value) is not None
        if not is_inverse and value not in FORMS.get(target, ()):
            raise UnclearSourceError(f"{node.name} computes `{target} = {value}`")
        if value in SHARES:
            reads_share = True
    text = ast.unparse(constructor)
    for name in re.findall(r"\bconfig\.(\w+)", text):
        if name not in READ_BY_CONSTRUCTOR:
            raise UnclearSourceError(f"{node.name} reads {name}")
    others = [name for name in functions if name.startswith("compute_") and name != COMPUTES]
    if others:
        raise UnclearSourceError(f"{node.name} has {others[0]}()")
    is_refusing = any(isinstance(inner, ast.Raise) for inner in ast.walk(constructor))
    if not is_refusing and "ROPE_INIT_FUNCTIONS[" not in text:
        raise UnclearSourceError(f"{node.name} does not use the rope types of transformers")
    return RotaryModule(
        by_layer_type=any(argument.arg == "layer_type" for argument in computes.args.args),
        reads_share=reads_share,
        scales=not is_refusing,
    )
