"""4-bit NormalFloat in plain torch: the definition, and the path of a CPU.

A weight is read row by row as one long vector. Each block of 64 entries is divided by its largest size, and every entry
becomes the nearest of 16 values, the quantiles of a normal distribution over [-1, 1]. The blocks' scales, less their
mean, are quantised in blocks of 256 to the 256 values of the dynamic map (double quantisation): 4.127 bits a weight.

Source: Dettmers et al., "QLoRA" (NeurIPS 2023), section 3. Layout and values are those of bitsandbytes' files: two
codes a byte, the first one in the upper half.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.kernels.dynamic_map import dynamic_map, nearest_codes

__all__ = ["BLOCK", "NESTED_BLOCK", "VALUES", "dequantise", "quantise", "scales_of"]

BLOCK = 64
NESTED_BLOCK = 256
# quantiles of N(0, 1), normalised to [-1, 1], with a zero of its own (QLoRA, appendix E)
VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def _in_blocks(flat: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(flat, (0, -flat.numel() % size)).view(-1, size)


def _over_largest(flat: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the entries over their block's largest size, and those sizes; a block of zeros stays zeros."""
    blocks = _in_blocks(flat, size)
    largest = blocks.abs().amax(dim=1) if blocks.numel() else blocks.new_zeros(0)
    return (blocks / largest.where(largest != 0, 1.0)[:, None]).view(-1)[: flat.numel()], largest


def quantise(weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return codes [ceil(n / 2)], the scales' codes, their blocks' scales, their map and their mean."""
    flat = weight.detach().float().flatten()
    normalised, largest = _over_largest(flat, BLOCK)
    codes = nearest_codes(normalised, torch.tensor(VALUES, device=flat.device))
    pairs = torch.nn.functional.pad(codes, (0, codes.numel() % 2)).view(-1, 2)
    offset = largest.mean() if largest.numel() else largest.new_zeros(())
    nested_map = dynamic_map(signed=True, device=flat.device)
    over, nested = _over_largest(largest - offset, NESTED_BLOCK)
    return pairs[:, 0] << 4 | pairs[:, 1], nearest_codes(over, nested_map), nested, nested_map, offset


def scales_of(scale_codes: Tensor, nested_scales: Tensor, nested_map: Tensor, offset: Tensor) -> Tensor:
    """Return the scale of each block, float32."""
    values = _in_blocks(nested_map[scale_codes.long()], NESTED_BLOCK) * nested_scales[:, None]
    return values.view(-1)[: scale_codes.numel()] + offset


def dequantise(
    codes: Tensor,
    scale_codes: Tensor,
    nested_scales: Tensor,
    nested_map: Tensor,
    offset: Tensor,
    *,
    out: Tensor,
) -> None:
    """Write the weights into ``out``, contiguous and of any float dtype."""
    pairs = torch.stack((codes >> 4, codes & 15), dim=1).view(-1)[: out.numel()].long()
    values = _in_blocks(torch.tensor(VALUES, device=codes.device)[pairs], BLOCK)
    values *= scales_of(scale_codes, nested_scales, nested_map, offset)[:, None]
    out.view(-1).copy_(values.view(-1)[: out.numel()])
