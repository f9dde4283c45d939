"""Measured costs on disk: what steps took, by base model, hardware, length of rows and adapted linears.

One folder per key, one file per run, written beside and renamed: runs that end at the same moment never lose each
other's figures, and a reader never sees half a file. A file that cannot be read, or of another version, counts as
absent; the newest files of a key are kept.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cohort.core.durable_files import write_text
from cohort.core.errors import StorageFullError
from cohort.data.cache import default_cache_directory
from cohort.models.config import DecoderConfig
from cohort.scheduling.cost.model import StepSample, TrialWork

__all__ = ["CostKey", "MeasuredCosts", "RunCosts", "length_bucket", "read_costs", "write_costs"]

VERSION = 1
MOST_FILES = 16


@dataclass(frozen=True, kw_only=True)
class CostKey:
    """What a measured cost holds for.

    Attributes:
        model: Sizes of the base model; its weights do not matter.
        hardware: Name of the device, threads of a CPU included.
        precision: Of the base model.
        length_bucket: See :func:`length_bucket`.
        adapters: The adapted linears.
    """

    model: str
    hardware: str
    precision: str
    length_bucket: int
    adapters: str

    @classmethod
    def of(
        cls, config: DecoderConfig, *, hardware: str, precision: str, mean_length: float, target_modules: Sequence[str]
    ) -> CostKey:
        """Return the key of a task's runs."""
        sizes = (
            config.num_layers, config.hidden_size, config.intermediate_size, config.num_heads, config.num_kv_heads,
            config.head_dim, config.vocab_size, config.qk_norm, config.windows,
        )  # fmt: skip
        return cls(
            model=f"{config.family} {_digest(sizes)}",
            hardware=hardware,
            precision=precision,
            length_bucket=length_bucket(mean_length),
            adapters=_digest(sorted(target_modules)),
        )

    @property
    def folder(self) -> str:
        """Name of the key's folder."""
        return _digest(sorted(asdict(self).items()))


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def length_bucket(mean_length: float) -> int:
    """Return the power of two at or above the mean tokens of a row: rows of one bucket cost alike per token."""
    return 1 << max(0, (max(1, round(mean_length)) - 1).bit_length())


@dataclass(frozen=True, kw_only=True)
class RunCosts:
    """What one run measured.

    Attributes:
        samples: A step of each pack that trained for long enough, as a mean.
        evaluated_tokens, evaluation_seconds: Of all evaluations together, generation included.
        steps: Steps of the executor.
        start_seconds: From the reading of the task to the first step.
        finish_seconds: From the last step to the end: adapters, tables, report.
        other_seconds: Between the first and the last step, beside training and evaluation.
    """

    samples: tuple[StepSample, ...] = ()
    evaluated_tokens: int = 0
    evaluation_seconds: float = 0.0
    steps: int = 0
    start_seconds: float = 0.0
    finish_seconds: float = 0.0
    other_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MeasuredCosts:
    """All that is known under a key: whole runs, newest first."""

    runs: tuple[RunCosts, ...] = ()

    @property
    def samples(self) -> tuple[StepSample, ...]:
        """Steps of all runs."""
        return tuple(sample for run in self.runs for sample in run.samples)

    @property
    def seconds_per_evaluated_token(self) -> float | None:
        """Median of the runs, since the first one on a machine compiles kernels; None where nothing was evaluated."""
        rates = [run.evaluation_seconds / run.evaluated_tokens for run in self.runs if run.evaluated_tokens]
        return statistics.median(rates) if rates else None


def read_costs(key: CostKey, *, directory: Path | None = None) -> MeasuredCosts:
    """Return what runs have measured under ``key``; nothing where there is nothing or it cannot be read.

    Args:
        key: What for.
        directory: Of all caches; ``$COHORT_CACHE_DIR`` or its default when None.
    """
    runs = [_read(path, key) for path in _newest_first(_folder(key, directory))]
    return MeasuredCosts(runs=tuple(run for run in runs if run is not None))


def write_costs(key: CostKey, costs: RunCosts, *, directory: Path | None = None) -> bool:
    """Keep what a run measured and drop the oldest files beyond a fixed number; return whether it could be written.

    A cache that cannot be written costs the next plan some accuracy, never the run that just ended.
    """
    folder = _folder(key, directory)
    text = json.dumps({"version": VERSION, "key": asdict(key), "costs": _to_json(costs)})
    try:
        write_text(folder / f"{uuid.uuid4().hex}.json", text)
        for old in _newest_first(folder)[MOST_FILES:]:
            old.unlink(missing_ok=True)
    except (OSError, StorageFullError):
        return False
    return True


def _folder(key: CostKey, directory: Path | None) -> Path:
    return (directory or default_cache_directory()) / "costs" / key.folder


def _newest_first(folder: Path) -> list[Path]:
    def modified(path: Path) -> tuple[float, str]:
        # another process may prune at the same time
        with suppress(OSError):
            return path.stat().st_mtime, path.name
        return 0.0, path.name

    with suppress(OSError):
        return sorted(folder.glob("*.json"), key=modified, reverse=True)
    return []


def _to_json(costs: RunCosts) -> dict[str, Any]:
    plain = asdict(costs)
    plain["samples"] = [
        {
            "seconds": sample.seconds,
            "pack": [[work.r, work.num_tokens, work.sum_squares, work.num_sequences] for work in sample.pack],
        }
        for sample in costs.samples
    ]
    return plain


def _read(path: Path, key: CostKey) -> RunCosts | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION or content["key"] != asdict(key):
            return None
        return _from_json(content["costs"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _from_json(plain: Mapping[str, Any]) -> RunCosts:
    samples = tuple(
        StepSample(
            pack=tuple(
                TrialWork(
                    r=int(r), num_tokens=float(tokens), sum_squares=float(squares), num_sequences=float(sequences)
                )
                for r, tokens, squares, sequences in entry["pack"]
            ),
            seconds=float(entry["seconds"]),
        )
        for entry in plain["samples"]
    )
    if any(not sample.pack or not 0 < sample.seconds < float("inf") for sample in samples):
        raise ValueError("a step has trials and seconds above 0")
    return RunCosts(
        samples=samples,
        evaluated_tokens=int(plain["evaluated_tokens"]),
        evaluation_seconds=float(plain["evaluation_seconds"]),
        steps=int(plain["steps"]),
        start_seconds=float(plain["start_seconds"]),
        finish_seconds=float(plain["finish_seconds"]),
        other_seconds=float(plain["other_seconds"]),
    )
