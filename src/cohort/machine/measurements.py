"""What runs measured, kept on disk for later runs: the seconds of steps and the peak memory of passes.

Every file is one JSON object: ``version``, ``key`` (what the figures hold for) and the figures. Files are written whole
and renamed, so a reader never sees half of one. A file that is damaged, or of another version or key, counts as absent.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cohort.core.cache_directory import default_cache_directory
from cohort.core.durable_files import write_text
from cohort.core.errors import StorageFullError
from cohort.core.memory_records import PassKind, PassPeak, PassSize
from cohort.machine.machine import package_versions
from cohort.models.config import DecoderConfig
from cohort.scheduling.cost.model import AdapterWork, StepCost, StepSample

__all__ = [
    "CostKey",
    "KnownPasses",
    "MeasuredCosts",
    "MemoryKey",
    "RunCosts",
    "forget_passes",
    "length_bucket",
    "read_costs",
    "read_passes",
    "write_costs",
    "write_passes",
]

VERSION = 1
MOST_FILES = 16
# a sweep's ranks are often 8 to 64: neighbours tell of each other, while r = 20000 is another workload
_RANKS_ALIKE = 8
# runs of one key on an idle machine differ by tens of percent
_SPEEDS_ALIKE = 3
# these lay out the memory of a pass: another version of one may keep other tensors
_PACKAGES = ("cohort-lora", "torch", "triton")


@dataclass(frozen=True, kw_only=True)
class CostKey:
    """What a measured cost holds for.

    Attributes:
        model: Sizes of the base model; its weights do not matter.
        hardware: Name of the device, threads of a CPU included.
        precision: The base model's dtype.
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
        # sizes alone: a step takes as long with other weights
        sizes = (
            config.num_layers, config.hidden_size, config.intermediate_size, config.num_heads, config.num_kv_heads,
            config.head_dim, config.vocab_size, config.qk_norm, config.windows, config.has_fused_qkv,
            *(() if config.mixture is None else config.mixture.sizes),
        )  # fmt: skip
        return cls(
            model=f"{config.family} {_digest(repr(sizes))}",
            hardware=hardware,
            precision=precision,
            length_bucket=length_bucket(mean_length),
            adapters=_digest(repr(sorted(target_modules))),
        )

    @property
    def folder(self) -> Path:
        """The key's folder below the cache directory."""
        return Path("costs") / _digest(repr(sorted(asdict(self).items())))


@dataclass(frozen=True, kw_only=True)
class MemoryKey:
    """What measured passes hold for.

    Attributes:
        cost: Base model, hardware, precision, usual length of rows and adapted linears.
        ranks: Narrowest and widest.
        longest: Longest row, to the next power of two.
        versions: Versions of the packages that lay out a pass's memory.
    """

    cost: CostKey
    ranks: tuple[int, int]
    longest: int
    versions: tuple[str, ...]

    @classmethod
    def of(cls, cost: CostKey, *, ranks: Sequence[int], longest: int) -> MemoryKey:
        """Return the key of a task's passes."""
        versions = package_versions()
        return cls(
            cost=cost,
            ranks=(min(ranks), max(ranks)),
            longest=length_bucket(longest),
            versions=tuple(versions.get(package, "none") for package in _PACKAGES),
        )

    @property
    def file(self) -> Path:
        """The key's file below the cache directory."""
        return Path("memory") / f"{_digest(json.dumps(asdict(self), sort_keys=True))}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def length_bucket(mean_length: float) -> int:
    """Return the power of two at or above the mean tokens of a row: rows of one bucket cost alike per token."""
    return 1 << max(0, (max(1, round(mean_length)) - 1).bit_length())


@dataclass(frozen=True, kw_only=True)
class RunCosts:
    """What one run measured.

    Attributes:
        samples: A step of each pack that trained for long enough, as a mean.
        evaluated_tokens, evaluation_seconds: Sums over all evaluations, generation included.
        steps: Steps of the executor.
        start_seconds: From the reading of the task to the first step.
        finish_seconds: From the last step to the end, without the comparison: adapters, tables, report.
        other_seconds: Between the first and the last step, without training and evaluation.
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
        return tuple(sample for run in self.runs for sample in run.samples)

    @property
    def seconds_per_evaluated_token(self) -> float | None:
        """Median of the runs; None where nothing was evaluated."""
        # a mean would be spoilt by the first run on a machine, which compiles kernels; of two runs, the lower
        rates = [run.evaluation_seconds / run.evaluated_tokens for run in self.runs if run.evaluated_tokens]
        return statistics.median_low(rates) if rates else None

    def alike(self, ranks: Collection[int], *, cost: StepCost) -> MeasuredCosts:
        """Return the runs that tell something about a task, without odd ones.

        Args:
            ranks: The task's, as the bank aligns them. Runs of ranks that are all far from them are left out.
            cost: The analytic cost. Runs that are far off from what the others are of it are left out: the machine was
                busy with something else.
        """
        least, most = min(ranks) / _RANKS_ALIKE, max(ranks) * _RANKS_ALIKE
        near = []
        for run in self.runs:
            samples = tuple(s for s in run.samples if all(least <= work.r <= most for work in s.pack))
            if samples:
                near.append(replace(run, samples=samples))
        scales = [statistics.median(s.seconds / cost.step_seconds(s.pack) for s in run.samples) for run in near]
        if not scales:
            return MeasuredCosts()
        usual = statistics.median_low(scales)
        kept = (usual / _SPEEDS_ALIKE <= scale <= usual * _SPEEDS_ALIKE for scale in scales)
        return MeasuredCosts(runs=tuple(itertools.compress(near, kept)))


@dataclass(frozen=True, kw_only=True)
class KnownPasses:
    """What a memory profile measured.

    Attributes:
        peaks: The peaks of its passes.
        correction: Factor on the predictions fitted to them.
        checked_tokens: The largest pass that was run.
        reserve_bytes: What the allocator held beyond its own peak.
        fit_error_percent: Mean absolute error on the passes of the sweep.
    """

    peaks: tuple[PassPeak, ...]
    correction: float
    checked_tokens: int
    reserve_bytes: int
    fit_error_percent: float


def read_costs(key: CostKey, *, directory: Path | None = None) -> MeasuredCosts:
    """Return what runs have measured under ``key``.

    Args:
        directory: The folder of all caches; ``$COHORT_CACHE_DIR`` or its default when None.
    """
    found = (_read(path, key, "costs") for path in _newest_first(_below(directory) / key.folder))
    return MeasuredCosts(runs=tuple(run for plain in found if plain is not None for run in _runs_in(plain)))


def write_costs(key: CostKey, costs: RunCosts, *, directory: Path | None = None) -> bool:
    """Keep what a run measured; return whether it could be written."""
    plain = asdict(costs)
    plain["samples"] = [
        {
            "seconds": sample.seconds,
            "pack": [[work.r, work.num_tokens, work.sum_squares, work.num_sequences] for work in sample.pack],
        }
        for sample in costs.samples
    ]
    folder = _below(directory) / key.folder
    # a file of its own for each run: runs that end at the same moment never lose each other's figures
    if not _write(folder / f"{uuid.uuid4().hex}.json", key, "costs", plain):
        return False
    with suppress(OSError):
        for old in _newest_first(folder)[MOST_FILES:]:
            old.unlink(missing_ok=True)
    return True


def read_passes(key: MemoryKey, *, directory: Path | None = None) -> KnownPasses | None:
    """Return the passes measured under ``key``; None where there are none. The arguments are those of read_costs."""
    plain = _read(_below(directory) / key.file, key, "passes")
    with suppress(ValueError, KeyError, TypeError):
        return None if plain is None else _passes_in(plain)
    return None


def write_passes(key: MemoryKey, passes: KnownPasses, *, directory: Path | None = None) -> bool:
    """Replace what was measured under ``key``; return whether it could be written."""
    plain = asdict(passes)
    plain["peaks"] = [{**asdict(peak), "kind": peak.kind.value} for peak in passes.peaks]
    return _write(_below(directory) / key.file, key, "passes", plain)


def forget_passes(key: MemoryKey, *, directory: Path | None = None) -> None:
    """Make the next run measure its passes again: this one ran out of memory although they fitted by prediction."""
    with suppress(OSError):
        (_below(directory) / key.file).unlink(missing_ok=True)


def _below(directory: Path | None) -> Path:
    return directory or default_cache_directory()


def _read(path: Path, key: CostKey | MemoryKey, what: str) -> dict[str, Any] | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(path.read_text(encoding="utf-8"))
        # the key is compared in full because the file's name holds only 16 digits of its digest
        if content["version"] == VERSION and content["key"] == json.loads(json.dumps(asdict(key))):
            return dict(content[what])
    return None


def _write(path: Path, key: CostKey | MemoryKey, what: str, plain: Mapping[str, Any]) -> bool:
    text = json.dumps({"version": VERSION, "key": asdict(key), what: plain})
    # a cache that cannot be written makes the next plan less exact or measure again; it must not end this run
    with suppress(OSError, StorageFullError):
        # a part of it reads as none, so the run need not wait for the disk
        write_text(path, text, is_flushed=False)
        return True
    return False


def _newest_first(folder: Path) -> list[Path]:
    def modified(path: Path) -> tuple[float, str]:
        # another process may remove old files at the same time
        with suppress(OSError):
            return path.stat().st_mtime, path.name
        return 0.0, path.name

    with suppress(OSError):
        return sorted(folder.glob("*.json"), key=modified, reverse=True)
    return []


def _runs_in(plain: Mapping[str, Any]) -> Iterator[RunCosts]:
    """Yield the run of a file; nothing where its figures cannot be."""
    with suppress(ValueError, KeyError, TypeError):
        samples = tuple(
            StepSample(
                pack=tuple(
                    AdapterWork(
                        r=int(r), num_tokens=float(tokens), sum_squares=float(squares), num_sequences=float(sequences)
                    )
                    for r, tokens, squares, sequences in entry["pack"]
                ),
                seconds=float(entry["seconds"]),
            )
            for entry in plain["samples"]
        )
        if all(sample.pack and 0 < sample.seconds < float("inf") for sample in samples):
            numbers = {name: type(zero)(plain[name]) for name, zero in asdict(RunCosts()).items() if name != "samples"}
            yield RunCosts(samples=samples, **numbers)


def _passes_in(plain: Mapping[str, Any]) -> KnownPasses | None:
    """Return the passes of a file; None if its figures are impossible."""
    peaks = tuple(
        PassPeak(
            kind=PassKind(entry["kind"]),
            size=PassSize(**entry["size"]),
            forward_bytes=int(entry["forward_bytes"]),
            backward_bytes=int(entry["backward_bytes"]),
        )
        for entry in plain["peaks"]
    )
    passes = KnownPasses(
        peaks=peaks,
        correction=float(plain["correction"]),
        checked_tokens=int(plain["checked_tokens"]),
        reserve_bytes=int(plain["reserve_bytes"]),
        fit_error_percent=float(plain["fit_error_percent"]),
    )
    sizes = (value for peak in peaks for value in (peak.forward_bytes, peak.backward_bytes, peak.size.num_rows))
    # a line is fitted to each kind, so both are needed; corrections only ever raise a prediction
    is_whole = {peak.kind for peak in peaks} == set(PassKind) and min(sizes) >= 0
    return passes if is_whole and 1 <= passes.correction < 1e3 else None
