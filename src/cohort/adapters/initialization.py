"""Fresh LoRA weights, drawn per trial and module at the true rank, so that no neighbour or slot can change them."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.modules_to_save.saved_modules import SAVED_PATHS
from cohort.adapters.peft_files.start_weights import start_weights
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import BlockFactor
from cohort.adapters.variants.block_factors import expanded
from cohort.adapters.variants.dora import row_norms
from cohort.adapters.variants.pissa_olora import PrincipalFactors, principal_factors
from cohort.adapters.variants.vera import initial_vectors
from cohort.core.process.huge_pages import use_huge_pages
from cohort.core.seeds import derive_seed

__all__ = ["initial_weights"]

# an adapter of this many numbers is drawn by several threads: one draws about twenty million in a second
LEAST_SHARED, DRAWERS = 1 << 22, 8


def initial_weights(
    layout: AdapterLayout,
    spec: AdapterSpec,
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
    weight_of: Callable[[str], Tensor] | None = None,
) -> Tensor:
    """Return the rank rows [rows of the spec's state, D] of a new adapter, on the host.

    By default A is Kaiming-uniform with a = sqrt(5) as in PEFT, with ``gaussian`` normal with deviation 1 / r, and B is
    zero. A is drawn in float32 from a generator seeded by (trial seed, module name), so a trial starts alike in every
    pack. ``pissa`` and ``olora`` begin with factors of the base weight (:mod:`cohort.adapters.variants.pissa_olora`).
    PEFT takes their product out of the base; here A0 and -B0 are further, frozen rank rows, because the base is shared.
    A block-diagonal A is drawn as the paper builds it, one LoRA adapter on each block of ``in / N`` inputs: within
    ``sqrt(N / in)``. PEFT draws it within ``sqrt(6 N / in)``.
    VeRA begins with its vectors, and a trial with ``start`` with that adapter's weights, which no seed changes.

    Args:
        weight_of: From a module's path to its base weight [N, K]; needed where the spec has frozen rows, magnitudes or
            modules of its own.

    Raises:
        InputError: the adapter that the trial begins with is no longer there as it was.
    """
    if spec.start is not None:
        return start_weights(layout, spec.start, dtype=dtype)
    if spec.use_vera is not None:
        return initial_vectors(layout, spec.use_vera, r=spec.r, dtype=dtype)
    rows_rD = torch.empty(spec.num_rows, layout.width, dtype=dtype)
    use_huge_pages(rows_rD.data_ptr(), rows_rD.nbytes)
    rows_rD.zero_()

    def draw(name: str) -> None:
        """Fill the columns of one module."""
        columns = layout.columns[name]
        in_features, r = layout.linears[name][0], spec.rank_of(name)
        if spec.has_frozen_rows:
            assert weight_of is not None, "an initialisation from the base needs its weights"
            start = _from_base(spec, name, weight_of=weight_of, seed=seed)
            frozen = slice(spec.largest_rank, spec.largest_rank + r)
            for rows, sign in ((slice(0, r), 1.0), (frozen, -1.0)):
                rows_rD[rows, columns.a] = start.a_rK.to(dtype)
                rows_rD[rows, columns.b] = sign * start.b_Nr.T.to(dtype)
            return
        blocks = spec.use_bdlora
        nblocks = blocks.nblocks if blocks is not None and blocks.factor_of(name) is BlockFactor.A else 1
        if spec.use_dora:
            assert weight_of is not None, "magnitudes begin with the norms of the base"
            rows_rD[spec.magnitude_row, columns.b] = row_norms(weight_of(name), dtype=dtype).cpu()
        generator = torch.Generator().manual_seed(derive_seed(seed, "lora_A", name))
        bound = 1.0 / math.sqrt(in_features // nblocks)
        if nblocks == 1 and dtype is torch.float32 and spec.init_lora_weights != "gaussian":
            # drawn one by one in the order of rows, whatever the strides; normal ones of contiguous memory are not
            rows_rD[:r, columns.a].uniform_(-bound, bound, generator=generator)
            return
        drawn_rK = torch.empty(r, in_features // nblocks)
        if spec.init_lora_weights == "gaussian":
            drawn_rK.normal_(std=1.0 / r, generator=generator)
        else:
            drawn_rK.uniform_(-bound, bound, generator=generator)
        rows_rD[:r, columns.a] = (drawn_rK if nblocks == 1 else expanded(drawn_rK, nblocks=nblocks)).to(dtype)

    # each module has a generator of its own, so their order changes no bit; torch draws without the interpreter's lock
    if rows_rD.numel() < LEAST_SHARED or spec.has_frozen_rows or spec.use_dora:
        for name in layout.columns:
            draw(name)
    else:
        with ThreadPoolExecutor(max_workers=DRAWERS, thread_name_prefix="cohort-draws") as drawers:
            list(drawers.map(draw, layout.columns))
    if spec.saved is not None:
        assert weight_of is not None, "a copy of a module begins with the base's"
        for name in spec.saved.names:
            spec.saved.table(rows_rD[spec.saved_row :], name).copy_(weight_of(SAVED_PATHS[name]))
    return rows_rD


def _from_base(spec: AdapterSpec, name: str, *, weight_of: Callable[[str], Tensor], seed: int) -> PrincipalFactors:
    try:
        return principal_factors(
            weight_of(name),
            spec.init_lora_weights,
            r=spec.rank_of(name),
            scale=spec.scale_of(name),
            seed=derive_seed(seed, "lora_A", name),
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
