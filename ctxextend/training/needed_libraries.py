"""The libraries that a training run needs: looked for before any of them is imported."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import NamedTuple

from ctxextend.errors import TrainingError, install_command
from ctxextend.recipe import Train

# The modules of experiment trackers, of which one is needed; those of others are their names.
# kubeflow needs none. Source: transformers 5.24, integrations/integration_utils.py.
TRACKER_MODULES = {
    "azure_ml": ("azureml",),
    "flyte": ("flytekit",),
    "tensorboard": ("tensorboard", "tensorboardX"),
}
WITHOUT_TRACKER_MODULE = ("all", "kubeflow", "none")
# What pip installs, where its name is not that of the module.
PACKAGES = {"azureml": "azureml-core", "comet_ml": "comet-ml"}


class _Need(NamedTuple):
    """What needs a library, and the modules of which one must be installed."""

    needed_by: str
    modules: tuple[str, ...]


def check_libraries(settings: Train | None = None) -> None:
    """Check that the libraries that training needs are installed, without importing them.

    Args:
        settings: The settings of the training; None: those of a table that is tuned on a text.

    Raises:
        TrainingError: One is not.
    """
    for need in _needs(settings):
        if any(find_spec(module) for module in need.modules):
            continue
        module = need.modules[0]
        name = PACKAGES.get(module, module).replace("_", "-")
        message = f"{need.needed_by} requires {name}, which is not installed."
        raise TrainingError(message, install_command(PACKAGES.get(module, module)))


def _needs(settings: Train | None) -> Iterator[_Need]:
    """Yield what training needs besides torch and transformers."""
    yield _Need(needed_by="Training", modules=("accelerate",))
    if settings is None:
        return
    if settings.lora is not None:
        yield _Need(needed_by="--lora", modules=("peft",))
    if settings.contrastive:
        flag = "--pairs" if settings.contrastive == "pairs" else "--contrastive"
        yield _Need(needed_by=flag, modules=("sentence_transformers",))
    tracker = settings.report_to
    if tracker not in WITHOUT_TRACKER_MODULE:
        modules = TRACKER_MODULES.get(tracker, (tracker,))
        yield _Need(needed_by=f"--report-to {tracker}", modules=modules)
