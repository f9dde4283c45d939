"""What one adapter is: its LoRA hyperparameters, with PEFT's names and meanings."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TypeVar

from cohort.adapters.expert_names import parameter_of
from cohort.adapters.initial_adapter import AdapterStart
from cohort.adapters.modules_to_save.saved_modules import SavedModules
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.adapters.variants.vera_settings import VectorAdapter

__all__ = ["INITIALISATIONS", "AdapterSpec", "VariantError", "changes_base", "check_initialisation"]

_V = TypeVar("_V", int, float)

INITIALISATIONS = r"true|gaussian|olora|pissa|pissa_niter_[1-9]\d*"
"""What ``init_lora_weights`` may be, as a regular expression."""


class VariantError(ValueError):
    """Hyperparameters that one adapter cannot have together, or no adapter can have."""


def check_initialisation(name: str) -> None:
    """Check a value of ``init_lora_weights``.

    Raises:
        VariantError: there is no such initialisation.
    """
    if not re.fullmatch(INITIALISATIONS, name):
        raise VariantError(
            f"init_lora_weights is {name!r}; allowed: true, gaussian, olora, pissa, pissa_niter_4 (any number)"
        )


def changes_base(name: str) -> bool:
    """Return whether an initialisation begins with a part of the base weight, which PEFT takes out of the base."""
    return name == "olora" or name.startswith("pissa")


@dataclass(frozen=True, kw_only=True)
class AdapterSpec:
    """LoRA hyperparameters of one adapter.

    Attributes:
        r: Rank, at least 1.
        lora_alpha: Numerator of the scale, above 0.
        lora_dropout: Dropout probability on the adapter's input, in [0, 1).
        use_rslora: Scale by ``lora_alpha / sqrt(r)`` instead of ``lora_alpha / r``.
        use_bdlora: The block structure of BD-LoRA; None for plain LoRA. ``r`` is the rank of all blocks together.
        init_lora_weights: ``true`` (A Kaiming-uniform, B zero), ``gaussian``, ``pissa``, ``pissa_niter_N`` or
            ``olora``.
        use_dora: Train a magnitude for each output of an adapted linear as well
            (:mod:`cohort.adapters.variants.dora`).
        use_vera: Train vectors around shared frozen projections instead of A and B
            (:mod:`cohort.adapters.variants.vera`); the scale is 1, and ``lora_alpha`` and ``use_rslora`` are not read.
        rank_pattern: Ranks of modules that have another than ``r``, by pattern. As in PEFT a pattern is a regular
            expression that a module's path ends with, behind a dot or as a whole, and the first that fits counts.
        alpha_pattern: The same for ``lora_alpha``.
        saved: Whole modules that it trains a copy of (``modules_to_save``); None for none.
        start: The adapter whose weights it begins with, in place of ``init_lora_weights``; None for none.
    """

    r: int
    lora_alpha: float
    lora_dropout: float = 0.0
    use_rslora: bool = False
    use_bdlora: BlockDiagonal | None = None
    init_lora_weights: str = "true"
    use_dora: bool = False
    use_vera: VectorAdapter | None = None
    rank_pattern: tuple[tuple[str, int], ...] = ()
    alpha_pattern: tuple[tuple[str, float], ...] = ()
    saved: SavedModules | None = None
    start: AdapterStart | None = None

    def __post_init__(self) -> None:
        if self.r < 1:
            raise ValueError(f"r must be at least 1, got {self.r}")
        if not self.lora_alpha > 0:
            raise ValueError(f"lora_alpha must be above 0, got {self.lora_alpha}")
        if not 0.0 <= self.lora_dropout < 1.0:
            raise ValueError(f"lora_dropout must be in [0, 1), got {self.lora_dropout}")
        if self.use_bdlora is not None and self.r % self.use_bdlora.nblocks:
            raise ValueError(f"nblocks {self.use_bdlora.nblocks} does not divide r {self.r}")
        check_initialisation(self.init_lora_weights)
        if self.use_bdlora is not None and (self.has_patterns or self.init_lora_weights != "true"):
            raise VariantError("use_bdlora with rank_pattern, alpha_pattern or another init_lora_weights than true")
        if self.lora_dropout and self.has_frozen_rows:
            raise VariantError(
                f"init_lora_weights {self.init_lora_weights} with lora_dropout {self.lora_dropout}: the part of the "
                "base weight that it takes out is not dropped, and one adapter has one dropout"
            )
        if self.use_dora and (self.has_frozen_rows or self.use_bdlora is not None):
            other = "use_bdlora" if self.use_bdlora is not None else f"init_lora_weights {self.init_lora_weights}"
            raise VariantError(f"use_dora with {other}")
        if self.saved is not None and (self.has_frozen_rows or self.use_vera is not None):
            other = "use_vera" if self.use_vera is not None else f"init_lora_weights {self.init_lora_weights}"
            raise VariantError(f"modules_to_save with {other}")
        self._check_vectors()
        self._check_start()
        for pattern, value in (*self.rank_pattern, *self.alpha_pattern):
            if not value > 0:
                raise ValueError(f"ranks and alphas of patterns must be above 0, got {value} for {pattern!r}")

    def _check_vectors(self) -> None:
        if self.use_vera is None:
            return
        others = {
            "use_dora": self.use_dora,
            "use_bdlora": self.use_bdlora is not None,
            f"init_lora_weights {self.init_lora_weights}": self.init_lora_weights != "true",
            "rank_pattern or alpha_pattern": self.has_patterns,
        }
        if found := [name for name, is_there in others.items() if is_there]:
            raise VariantError(f"use_vera with {found[0]}")

    def _check_start(self) -> None:
        if self.start is None:
            return
        others = {
            "use_dora": self.use_dora,
            "use_vera": self.use_vera is not None,
            "use_bdlora": self.use_bdlora is not None,
            f"init_lora_weights {self.init_lora_weights}": self.init_lora_weights != "true",
            "rank_pattern or alpha_pattern": self.has_patterns,
            "modules_to_save": self.saved is not None,
            f"r {self.r}, where the adapter has r {self.start.r},": self.r != self.start.r,
        }
        if found := [name for name, is_there in others.items() if is_there]:
            raise VariantError(f"{found[0]} with adapter_name_or_path")

    @property
    def scale(self) -> float:
        return self._scale(self.r, self.lora_alpha)

    @property
    def largest_rank(self) -> int:
        """The largest rank that a module may have."""
        return max(self.r, *(rank for _, rank in self.rank_pattern)) if self.rank_pattern else self.r

    @property
    def has_frozen_rows(self) -> bool:
        """Whether the base weight's part that training began with is subtracted, in frozen rank rows."""
        return changes_base(self.init_lora_weights)

    @property
    def has_only_factors(self) -> bool:
        """Whether A and B are all that is trained."""
        return not self.use_dora and self.use_vera is None and self.saved is None

    @property
    def num_rows_in_passes(self) -> int:
        """Rank rows that the products of a pass read or add to: all but the tables of :attr:`saved`."""
        return self.num_rows if self.saved is None else self.num_rows - self.saved.num_rows

    @property
    def takes_loraplus(self) -> bool:
        """Whether the rate of B can be another: B's columns hold nothing but factors and magnitudes."""
        return self.use_vera is None and self.saved is None

    @property
    def num_factor_rows(self) -> int:
        """Rank rows that products read: the trained ones, then those of :attr:`has_frozen_rows`."""
        return self.largest_rank * (2 if self.has_frozen_rows else 1)

    @property
    def num_trained_rows(self) -> int:
        """Rank rows that the optimizer steps, the first of its state."""
        if self.use_vera is not None:
            return 1
        if self.saved is not None:
            return self.num_rows
        return self.magnitude_row + 1 if self.use_dora else self.largest_rank

    @property
    def magnitude_row(self) -> int:
        """The rank row of DoRA's magnitudes, or VeRA's vectors: behind the last tile of 16 rows that products read."""
        return -(-self.num_factor_rows // 16) * 16

    @property
    def num_rows(self) -> int:
        """Rank rows that it takes in a bank."""
        if self.saved is not None:
            return self.saved_row + self.saved.num_rows
        return self.num_factor_rows if self.has_only_factors else self.magnitude_row + 1

    @property
    def saved_row(self) -> int:
        """The first rank row of the tables of :attr:`saved`, a multiple of 16."""
        return self.magnitude_row + (16 if self.use_dora else 0)

    @property
    def first_state_row(self) -> int:
        """The first rank row of its state; those before are made from it."""
        return self.magnitude_row if self.use_vera is not None else 0

    @property
    def has_patterns(self) -> bool:
        return bool(self.rank_pattern or self.alpha_pattern)

    def rank_of(self, module: str) -> int:
        return _of(self.rank_pattern, module, self.r)

    def alpha_of(self, module: str) -> float:
        return _of(self.alpha_pattern, module, self.lora_alpha)

    def scale_of(self, module: str) -> float:
        """Return the scale of a module, given by its full path."""
        return self._scale(self.rank_of(module), self.alpha_of(module))

    def _scale(self, r: int, alpha: float) -> float:
        if self.use_vera is not None:
            return 1.0
        return alpha / (math.sqrt(r) if self.use_rslora else r)


def _of(pattern: tuple[tuple[str, _V], ...], module: str, default: _V) -> _V:
    # peft.utils.other.get_pattern_key
    path = parameter_of(module)
    return next((value for key, value in pattern if re.match(rf"(.*\.)?({key})$", path)), default)
