"""Whether an adapter's files fit a model tensor by tensor: a server takes an adapter whole or says what is wrong.

PEFT's flag alone does not tell: on quantised linears it trains dense factors under ``use_bdlora``, and servers that do
not know the flag read packed blocks as if they were dense. So shapes decide, and everything that is not understood is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_format import WEIGHTS_FILE, PeftAdapter, rank_rows_from_peft
from cohort.adapters.peft_files.peft_names import LORA_A, LORA_B, MAGNITUDE, PREFIX
from cohort.adapters.sharding import AdapterShard, shard_adapter
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import BlockFactor
from cohort.core.errors import InputError, Problem

__all__ = ["load_shard", "tensor_problems"]

_ENDS = {LORA_A: "A", LORA_B: "B"}


def load_shard(adapter: PeftAdapter, *, layout: AdapterLayout, rank: int, size: int) -> AdapterShard:
    """Return what rank ``rank`` of ``size`` serves of an adapter, in whatever form its files store it.

    Args:
        layout: All linears of the model that may be adapted; those that the adapter lacks get no term.

    Raises:
        InputError: every tensor that is missing, unknown, or of another shape than the model and the rank say.
        ShardingError: the model cannot be divided over ``size`` ranks.
    """
    if problems := list(tensor_problems(adapter, linears=layout.linears)):
        raise InputError(problems)
    own = AdapterLayout({name: shape for name, shape in layout.linears.items() if name in set(adapter.modules)})
    spec, rows_rD = adapter.spec, rank_rows_from_peft(own, adapter)
    if any(
        _stored_factor(adapter, name, shape) is not _named_factor(spec, name) for name, shape in own.linears.items()
    ):
        # rank rows of a linear that is dense, or in other blocks than named, belong to all ranks
        spec = replace(spec, use_bdlora=None)
    return shard_adapter(own, spec, rows_rD, rank=rank, size=size)


def _named_factor(spec: AdapterSpec, module: str) -> BlockFactor | None:
    return None if spec.use_bdlora is None else spec.use_bdlora.factor_of(module)


def _stored_factor(adapter: PeftAdapter, module: str, shape: tuple[int, int]) -> BlockFactor | None:
    """Return which factor is stored in blocks, by its shape."""
    a, b = (adapter.tensors[f"{PREFIX}{module}{end}"] for end in _ENDS)
    if a.shape[1] != shape[0]:
        return BlockFactor.A
    return BlockFactor.B if b.shape[1] != adapter.spec.rank_of(module) else None


def tensor_problems(adapter: PeftAdapter, *, linears: Mapping[str, tuple[int, int]]) -> Iterator[Problem]:
    """Yield what is wrong with each tensor of an adapter for a model with these linears."""
    blocks, modules = adapter.spec.use_bdlora, set[str]()
    for name, tensor in adapter.tensors.items():
        end = next((end for end in _ENDS if name.endswith(end)), "")
        module = name.removeprefix(PREFIX).removesuffix(end)
        if adapter.spec.use_dora and name.endswith(MAGNITUDE):
            yield from _magnitude_problems(name, tensor.shape, linears=linears)
            continue
        if not end or not name.startswith(PREFIX) or module not in linears:
            yield Problem(
                where=f"{WEIGHTS_FILE}: {name}",
                found=f"a tensor {tuple(tensor.shape)} that is no LoRA factor of a linear of this model",
                allowed=f"{PREFIX}LINEAR{LORA_A} and {LORA_B}",
                hint="Load the adapter on the base model that it was trained on.",
            )
            continue
        modules.add(module)
        (in_features, out_features), r = linears[module], adapter.spec.rank_of(module)
        dense = (r, in_features) if _ENDS[end] == "A" else (out_features, r)
        n = 1 if blocks is None else blocks.nblocks
        packed = (dense[0], dense[1] // n) if dense[1] % n == 0 else dense
        if tuple(tensor.shape) not in (dense, packed):
            in_blocks = f", or {packed} in {n} blocks" if packed != dense else ""
            yield Problem(
                where=f"{WEIGHTS_FILE}: {name}",
                found=f"shape {tuple(tensor.shape)}",
                allowed=f"shape {dense}{in_blocks}",
                hint="Load the adapter on the base model that it was trained on, with its own adapter_config.json.",
            )
    yield from _pair_problems(adapter, modules, linears=linears)


def _magnitude_problems(
    name: str, shape: Sequence[int], *, linears: Mapping[str, tuple[int, int]]
) -> Iterator[Problem]:
    module = name.removeprefix(PREFIX).removesuffix(MAGNITUDE)
    out_features = linears[module][1] if module in linears else None
    if tuple(shape) != (out_features,):
        yield Problem(
            where=f"{WEIGHTS_FILE}: {name}",
            found=f"shape {tuple(shape)}",
            allowed="magnitudes of a linear of this model" if out_features is None else f"shape {(out_features,)}",
            hint="Load the adapter on the base model that it was trained on.",
        )


def _pair_problems(
    adapter: PeftAdapter, modules: set[str], *, linears: Mapping[str, tuple[int, int]]
) -> Iterator[Problem]:
    blocks = adapter.spec.use_bdlora
    for module in sorted(modules):
        a, b = (adapter.tensors.get(f"{PREFIX}{module}{end}") for end in _ENDS)
        if a is None or b is None:
            missing = f"{PREFIX}{module}{LORA_A if a is None else LORA_B}"
            hint = "Save the adapter again."
            yield Problem(where=f"{WEIGHTS_FILE}: {missing}", found="no tensor", allowed="both factors", hint=hint)
            continue
        in_features, r = linears[module][0], adapter.spec.rank_of(module)
        if blocks is not None and a.shape[1] < in_features and b.shape[1] < r:
            yield Problem(
                where=f"{WEIGHTS_FILE}: {PREFIX}{module}",
                found=f"both factors in {blocks.nblocks} blocks",
                allowed="one block-diagonal factor and one dense one",
                hint="Save the adapter again.",
            )
