"""Rotary tables: cosine and sine by position, looked up instead of computed in the stream.

Shapes:  T rows · E head width
"""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.core.errors import InputError, Problem
from cohort.models.config import RotaryConfig

__all__ = ["RotaryTable"]

# Each block is computed alone and by the same call, so a position's bits never depend on how far the table has grown
# (vectorised cosine treats the end of an array otherwise than its middle).
BLOCK_POSITIONS = 2048


class RotaryTable:
    """Cosine and sine of the half-rotation convention, grown block by block as positions are asked for."""

    def __init__(self, config: RotaryConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self._config = config
        self._dtype = dtype
        self._device = device
        width = 2 * len(config.inverse_frequencies)
        self._cos_PE = torch.empty(0, width, dtype=dtype, device=device)
        self._sin_PE = torch.empty(0, width, dtype=dtype, device=device)

    def lookup(self, positions_T: Tensor, *, num_positions: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin [T, E] of ``positions_T``.

        ``num_positions`` bounds the positions from above; it is a host number, so that nothing is read from a device.

        Raises:
            InputError: the model's rotary scaling does not hold for ``num_positions`` positions.
        """
        limit = self._config.max_positions
        if limit is not None and num_positions > limit:
            raise InputError(
                Problem(
                    where="max_length",
                    found=f"a sequence of {num_positions} tokens",
                    allowed=f"at most {limit} with this model's '{self._config.rope_type}' rotary scaling",
                    hint="Shorten max_length (or prompt plus max_new_tokens) to that.",
                )
            )
        if num_positions > len(self._cos_PE) or not len(self._cos_PE):
            self._grow(max(num_positions, 1))
        return self._cos_PE.index_select(0, positions_T), self._sin_PE.index_select(0, positions_T)

    def _grow(self, num_positions: int) -> None:
        first, last = len(self._cos_PE) // BLOCK_POSITIONS, -(-num_positions // BLOCK_POSITIONS)
        cosines, sines = [self._cos_PE], [self._sin_PE]
        for block in range(first, last):
            cos, sin = self._block(block * BLOCK_POSITIONS)
            cosines.append(cos)
            sines.append(sin)
        self._cos_PE, self._sin_PE = torch.cat(cosines), torch.cat(sines)

    def _block(self, start: int) -> tuple[Tensor, Tensor]:
        # float32 whatever the model's dtype (float64 included), then one cast: as transformers computes it
        inverse = torch.tensor(self._config.inverse_frequencies, dtype=torch.float32)
        positions = torch.arange(start, start + BLOCK_POSITIONS, dtype=torch.float32)
        angles = positions[:, None] * inverse[None, :]
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos() * self._config.scale, angles.sin() * self._config.scale
        return cos.to(self._device, self._dtype), sin.to(self._device, self._dtype)
