"""What a step in exact numerics costs over a fast one: measured ratios, and when ``numerics: auto`` takes exact.

The table is of ``benchmarks/steps/exact_cost.py``; ``cohort doctor --measure`` adds what it measured on a machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cohort.scheduling.cost.hardware import known_gpu

__all__ = [
    "MEASURED",
    "MOST_RATIO",
    "ExactStep",
    "LayerWidths",
    "described_ratios",
    "gpu_kind",
    "is_cheap",
    "steps_alike",
    "steps_of",
]

MOST_RATIO = 1.05
"""The most that a step may cost, over one in fast numerics, for ``auto`` to take exact."""

# products of widths this near take kernels and tiles of the same kinds
_WIDTHS_ALIKE = 1.25
# Hopper's product reads rows of whole 16 bytes; other widths take Triton's, which is slower
_WIDTH_STEP = 8


@dataclass(frozen=True, kw_only=True)
class LayerWidths:
    """What a layer's products follow from: a step's ratio hardly depends on how many layers there are.

    Attributes:
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP.
    """

    hidden_size: int
    intermediate_size: int

    def is_like(self, other: LayerWidths) -> bool:
        """Return whether what was measured for ``other`` is taken to hold for these widths."""
        own = (self.hidden_size, self.intermediate_size)
        theirs = (other.hidden_size, other.intermediate_size)
        if any((a % _WIDTH_STEP == 0) != (b % _WIDTH_STEP == 0) for a, b in zip(own, theirs, strict=True)):
            return False
        return self.hidden_size == other.hidden_size and (
            other.intermediate_size / _WIDTHS_ALIKE <= self.intermediate_size <= other.intermediate_size * _WIDTHS_ALIKE
        )


@dataclass(frozen=True, kw_only=True)
class ExactStep:
    """One measured step.

    Attributes:
        gpu: Its kind, see :func:`gpu_kind`.
        widths: The base model's.
        quantization: Format of the base model's weights.
        tokens: Of the step's pass.
        ratio: Its seconds in exact numerics, over those in fast.
        launched: Whether its pass is launched kernel by kernel, as those of DoRA are at every size: the host may be
            what it waits for.
    """

    gpu: str
    widths: LayerWidths
    quantization: str = "none"
    tokens: int
    ratio: float
    launched: bool = False


_1B = LayerWidths(hidden_size=2048, intermediate_size=8192)
_8B = LayerWidths(hidden_size=4096, intermediate_size=14336)
MEASURED: Sequence[ExactStep] = (
    ExactStep(gpu="H100", widths=_1B, tokens=1_020, ratio=1.011),
    ExactStep(gpu="H100", widths=_1B, tokens=4_088, ratio=1.027),
    # only exact numerics record it: the fast step waited for the host
    ExactStep(gpu="H100", widths=_1B, tokens=8_192, ratio=0.932),
    # the host has not launched as fast as the GPU computes
    ExactStep(gpu="H100", widths=_1B, tokens=4_088, ratio=1.329, launched=True),
    ExactStep(gpu="H100", widths=_8B, tokens=1_020, ratio=1.027),
    # an earlier run found 1.08: its passes were replayed in graphs of a quarter more rows, as the first of a size are
    ExactStep(gpu="H100", widths=_8B, tokens=4_088, ratio=1.032),
    # other runs found 1.028 and 1.031
    ExactStep(gpu="H100", widths=_8B, tokens=8_192, ratio=1.033),
    ExactStep(gpu="H200", widths=_1B, tokens=1_020, ratio=1.01),
    ExactStep(gpu="H200", widths=_1B, tokens=4_088, ratio=1.005),
    # another run found 1.010
    ExactStep(gpu="H200", widths=_1B, tokens=8_192, ratio=1.033),
    # with dropout; exact numerics alone record the larger
    ExactStep(gpu="H200", widths=_1B, tokens=4_088, ratio=1.015),
    ExactStep(gpu="H200", widths=_1B, tokens=8_192, ratio=1.045),
    ExactStep(gpu="H200", widths=_1B, tokens=8_192, ratio=1.033, launched=True),
    ExactStep(gpu="H200", widths=_1B, tokens=4_088, ratio=1.318, launched=True),
    ExactStep(gpu="H200", widths=_8B, tokens=1_020, ratio=1.004),
    ExactStep(gpu="H200", widths=_8B, tokens=4_088, ratio=1.027),
    # 12 layers; another run, of 8, found 1.031
    ExactStep(gpu="H200", widths=_8B, tokens=8_192, ratio=1.017),
    ExactStep(gpu="H200", widths=_8B, tokens=4_088, ratio=1.027, launched=True),
    ExactStep(gpu="H200", widths=_8B, tokens=8_192, ratio=1.038, launched=True),
    ExactStep(gpu="H200", widths=_8B, quantization="fp8", tokens=8_192, ratio=1.042),
)


def gpu_kind(device_name: str) -> str:
    """Return the short name of a GPU that is known, else the driver's."""
    known = known_gpu(device_name)
    return device_name if known is None else known.name


def steps_alike(
    steps: Iterable[ExactStep], *, gpu: str, widths: LayerWidths, quantization: str
) -> tuple[ExactStep, ...]:
    """Return the measured steps that hold for a base model of ``widths`` on GPUs of the kind ``gpu``."""
    found = (step for step in steps if (step.gpu, step.quantization) == (gpu, quantization))
    return tuple(step for step in found if widths.is_like(step.widths))


def steps_of(steps: Iterable[ExactStep], *, launched: bool) -> tuple[ExactStep, ...]:
    """Return the steps that tell of passes that are recorded, or of those that may not be: all, as none tells all."""
    return tuple(step for step in steps if launched or not step.launched)


def is_cheap(steps: Sequence[ExactStep]) -> bool:
    """Return whether no step that was measured takes longer than ``auto`` allows; False where none was measured."""
    return bool(steps) and max(step.ratio for step in steps) <= MOST_RATIO


def described_ratios(steps: Sequence[ExactStep]) -> str:
    """Return ``a step takes up to 3 % longer, at 1,020 to 8,192 tokens`` for at least one step."""
    tokens = sorted({step.tokens for step in steps})
    percent = 100 * (max(step.ratio for step in steps) - 1)
    # 5.4 would read as the 5 that are allowed
    digits = 1 if round(percent) <= 100 * (MOST_RATIO - 1) < percent else 0
    longer = f"up to {percent:.{digits}f} % longer" if percent >= 0.5 else "no longer"
    span = f"{tokens[0]:,}" if len(tokens) == 1 else f"{tokens[0]:,} to {tokens[-1]:,}"
    return f"a step takes {longer}, measured at {span} tokens"
