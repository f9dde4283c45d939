"""What exact numerics cost on a kind of GPU: by the package's table, and as this machine measured it and kept it.

``cohort doctor --measure`` writes a file for each kind of GPU, widths and format of weights. A file that is damaged
counts as absent: the next measurement replaces it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from cohort.core.cache_directory import default_cache_directory
from cohort.core.durable_files import write_text
from cohort.scheduling.cost.exact_ratios import MEASURED, ExactStep, LayerWidths, steps_alike

__all__ = ["keep_exact_steps", "known_exact_steps", "own_exact_steps"]


def known_exact_steps(*, gpu: str, widths: LayerWidths, quantization: str) -> tuple[ExactStep, ...]:
    """Return what is known of a base model on GPUs of the kind ``gpu``: measured here, else by the package's table.

    The table also tells of steps of more tokens than any that was measured here.
    """
    own = steps_alike(own_exact_steps(gpu), gpu=gpu, widths=widths, quantization=quantization)
    # of widths that are alike those that are the same tell most
    same = tuple(step for step in own if step.widths == widths)
    here = same or own
    most_tokens = {
        launched: max((step.tokens for step in here if step.launched is launched), default=0)
        for launched in (False, True)
    }
    # a measurement that ran out of memory ended before its largest steps: those are the package's
    package = steps_alike(MEASURED, gpu=gpu, widths=widths, quantization=quantization)
    return (*here, *(step for step in package if step.tokens > most_tokens[step.launched]))


def own_exact_steps(gpu: str) -> tuple[ExactStep, ...]:
    """Return every step that this machine measured on GPUs of the kind ``gpu``."""
    found: list[ExactStep] = []
    with suppress(OSError):
        for path in sorted(_folder().glob("*.json")):
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                found += _steps_in(json.loads(path.read_text(encoding="utf-8")))
    return tuple(step for step in found if step.gpu == gpu)


def keep_exact_steps(steps: Sequence[ExactStep]) -> Path:
    """Keep what was measured for one base model on one kind of GPU, in place of what was kept before.

    Raises:
        StorageFullError: the disk is full.
        OSError: the file cannot be written.
    """
    first = steps[0]
    key = json.dumps([first.gpu, asdict(first.widths), first.quantization])
    path = _folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps([asdict(step) for step in steps], indent=1) + "\n")
    return path


def _folder() -> Path:
    return default_cache_directory() / "exact_steps"


def _steps_in(plain: list[dict[str, object]]) -> list[ExactStep]:
    # steps with dropout were those that are launched, and were named so
    named = ({("launched" if key == "dropout" else key): value for key, value in entry.items()} for entry in plain)
    found = [ExactStep(**{**entry, "widths": LayerWidths(**entry["widths"])}) for entry in named]  # type: ignore[arg-type]
    for step in found:
        # comparisons raise TypeError where a figure is no number
        if not (step.tokens > 0 and 0 < step.ratio < float("inf")):
            raise ValueError(f"an impossible figure: {step}")
    return found
