"""From names in ``report_to`` to trackers; the only place that imports their packages."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from types import ModuleType

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.integrations.trackers.mlflow_tracker import MlflowTracker
from cohort.integrations.trackers.tensorboard_tracker import TensorBoardTracker
from cohort.integrations.trackers.tracker import Tracker, Trackers, TrackerSettings
from cohort.integrations.trackers.wandb_like_tracker import trackio_tracker, wandb_tracker

__all__ = ["TRACKER_NAMES", "installed_trackers", "open_trackers", "tracker_problems"]

# tracker: the packages of which one is enough
_PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
}
TRACKER_NAMES = tuple(_PACKAGES)

Importer = Callable[[str], ModuleType]


def installed_trackers() -> tuple[str, ...]:
    """Return the trackers whose package is there: what ``report_to: all`` means, as in transformers."""
    return tuple(
        name
        for name, packages in _PACKAGES.items()
        if any(importlib.util.find_spec(package) is not None for package in packages)
    )


def _first_installed(name: str, *, import_module: Importer) -> ModuleType | None:
    for package in _PACKAGES[name]:
        try:
            return import_module(package)
        except ModuleNotFoundError as error:
            # a package that is there but lacks one of its own dependencies is reported as it is
            if error.name != package:
                raise
    return None


def _problem(name: str, *, where: Place | str) -> Problem:
    found, hint = f"{name!r}", "Choose one of these."
    if name in _PACKAGES:
        package = _PACKAGES[name][0]
        found += f", but the package {package} is not installed"
        hint = f"Run `pip install {package}`, or remove {name} from report_to."
    return Problem(where=where, found=found, allowed=", ".join((*TRACKER_NAMES, "none")), hint=hint)


def _open(name: str, module: ModuleType, *, settings: TrackerSettings, import_module: Importer) -> Tracker:
    if name == "wandb":
        return wandb_tracker(settings, wandb=module)
    if name == "trackio":
        return trackio_tracker(settings, trackio=module)
    if name == "mlflow":
        entities = import_module("mlflow.entities")
        return MlflowTracker(settings, client=module.MlflowClient(), metric=entities.Metric, param=entities.Param)
    if module.__name__ == "tensorboardX":
        writer, hparams = module.SummaryWriter, import_module("tensorboardX.summary").hparams
    else:
        writer = import_module("torch.utils.tensorboard").SummaryWriter
        hparams = import_module("torch.utils.tensorboard.summary").hparams
    return TensorBoardTracker(settings, writer=writer, hparams=hparams)


def _modules(names: Sequence[str], *, import_module: Importer) -> dict[str, ModuleType | None]:
    wanted = [name for name in dict.fromkeys(names) if name != "none"]
    return {name: _first_installed(name, import_module=import_module) if name in _PACKAGES else None for name in wanted}


def tracker_problems(
    names: Sequence[str], *, where: Place | str, import_module: Importer = importlib.import_module
) -> list[Problem]:
    """Return what keeps :func:`open_trackers` from opening ``names``: unknown ones, packages that are not installed."""
    modules = _modules(names, import_module=import_module)
    return [_problem(name, where=where) for name, module in modules.items() if module is None]


def open_trackers(
    names: Sequence[str], *, settings: TrackerSettings, import_module: Importer = importlib.import_module
) -> Trackers:
    """Return the trackers of ``report_to``; ``none`` and an empty list give one that does nothing.

    Call it before training starts: everything that can be missing is found here.

    Raises:
        InputError: a name is unknown or its package is not installed; lists all of them.
    """
    if problems := tracker_problems(names, where="report_to", import_module=import_module):
        raise InputError(problems)
    modules = _modules(names, import_module=import_module)
    return Trackers(
        {
            name: _open(name, module, settings=settings, import_module=import_module)
            for name, module in modules.items()
            if module is not None
        }
    )
