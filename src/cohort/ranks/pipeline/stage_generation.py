"""A stage of a pipeline as generation sees a model: every stage runs the same requests, and all learn what was picked.

A pass of new positions goes through the stages one after the other, and the picked tokens come back the same way, a few
bytes a sequence. The next pass needs them, so one stage works at a time.

Shapes:  T rows of the stream · B sequences whose next token is picked · D hidden width
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.models.attention import AttentionContext
from cohort.models.config import DecoderConfig
from cohort.models.decoder import Decoder
from cohort.ranks.pipeline.stage_links import StageLinks
from cohort.scheduling.pipelines.pipeline_schedule import Direction
from cohort.serving.pass_computer import padded_logits
from cohort.serving.sampler import Scores

__all__ = ["StageModel"]


class StageModel:
    """Satisfies :class:`~cohort.serving.pass_computer.PassModel` on one stage.

    Only the last stage has logits; the others get the likeliest tokens, which is all that greedy generation asks.
    """

    def __init__(self, decoder: Decoder, *, stage: int, num_stages: int, links: StageLinks) -> None:
        """Take the decoder of a stage; all stages begin together and are then asked the same."""
        self._decoder, self._stage, self._links = decoder, stage, links
        self._is_last = stage == num_stages - 1
        self._num_passes = 0

    @property
    def config(self) -> DecoderConfig:
        return self._decoder.config

    @property
    def dtype(self) -> torch.dtype:
        return self._decoder.dtype

    @property
    def device(self) -> torch.device:
        return self._decoder.device

    @property
    def part(self) -> Sequence[int]:
        return self._decoder.part

    @property
    def takes_any_rows(self) -> bool:
        return self._decoder.takes_any_rows

    def forward(
        self, tokens_T: Tensor, *, positions_T: Tensor, attention: AttentionContext, lora: LoraContext | None
    ) -> Tensor:
        """Return the hidden states [T, D] behind the stage: of the last one after the final norm."""
        decoder = self._decoder
        self._num_passes += 1
        if self._stage == 0:
            entered_TD = decoder.embed(tokens_T)
        else:
            entered_TD = self._links.receive(
                torch.empty(len(tokens_T), decoder.config.hidden_size, dtype=decoder.dtype, device=decoder.device),
                sender=self._stage - 1,
                number=self._num_passes,
                direction=Direction.FORWARD,
            )
        residual_TD, delta_TD = decoder.run_layers(entered_TD, positions_T=positions_T, attention=attention, lora=lora)
        if self._is_last:
            return decoder.final_norm(residual_TD, delta_TD)
        boundary_TD = residual_TD if delta_TD is None else residual_TD + delta_TD
        self._links.send(boundary_TD, to=self._stage + 1, number=self._num_passes, direction=Direction.FORWARD)
        return boundary_TD

    def logits(self, hidden_TD: Tensor) -> Tensor:
        return self._decoder.logits(hidden_TD)

    def scores(self, hidden_BD: Tensor) -> Scores:
        """Return the scores of the last pass; the stages before the last have what it picked, and no logits [B, 0]."""
        if self._is_last:
            scores = Scores.of(padded_logits(self, hidden_BD))
        else:
            likeliest_2B = self._links.receive(
                torch.empty(2, len(hidden_BD), dtype=torch.int64, device=hidden_BD.device),
                sender=self._stage + 1,
                number=self._num_passes,
                direction=Direction.BACKWARD,
            )
            scores = Scores(hidden_BD.new_empty(len(hidden_BD), 0), likeliest_2B)
        if self._stage > 0:
            self._links.send(
                scores.likeliest_2B, to=self._stage - 1, number=self._num_passes, direction=Direction.BACKWARD
            )
        return scores
