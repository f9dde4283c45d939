"""What random packs train: shapes with random weights and few layers, or small checkpoints; and their rows."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.llama_shapes import decoder_config, random_decoder, rows_of_lengths
from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.data.tokenised import TokenisedRows
from cohort.machine.compile_ahead.launches import collect_launches
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import WEIGHT_FORMATS
from cohort.models.weights import load_decoder

__all__ = ["LAYERS", "WIDEST_RANKS", "Base", "compile_kernels"]

# the widest rank of a pack: each has kernels of its own
WIDEST_RANKS = (16, 64, 256)
# a pass of few trials has a widest rank of its own: with 32, every class of ranks, as 256 takes two passes of 128
COMPILED_RANKS = (16, 32, 64, 256)
# of a shape with random weights: enough for every kind of layer input
LAYERS = {"1b": 4, "8b": 2, "tiny": 2}


@dataclass(frozen=True)
class Base:
    """A model to train on: a shape's name, perhaps with its weights kept as in ``8b+fp8``, or a directory."""

    name: str

    @property
    def described(self) -> str:
        return f"{self.name}, {LAYERS[self._shape]} layers" if self._is_shape else Path(self.name).parent.name

    @property
    def _shape(self) -> str:
        return self.name.partition("+")[0]

    @property
    def _is_shape(self) -> bool:
        return self._shape in LAYERS

    def decoder(self) -> Decoder:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if not self._is_shape:
            return load_decoder(Path(self.name), dtype="bfloat16" if device == "cuda" else "float32", device=device)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        config = decoder_config(self._shape, num_layers=LAYERS[self._shape])
        kept = WEIGHT_FORMATS[self.name.partition("+")[2] or "none"]
        return random_decoder(config, device=device, dtype=dtype, weight_format=kept)

    @staticmethod
    def rows_of(decoder: Decoder) -> tuple[TokenisedRows, ...]:
        """Return the rows of the trials that are compared, and the shorter and longer ones of neighbours."""
        vocabulary, most = decoder.config.vocab_size, 240
        draw = random.Random(0)

        def rows(least: int, longest: int, seed: int) -> TokenisedRows:
            lengths = [(draw.randint(1, least), draw.randint(least, longest)) for _ in range(48)]
            return rows_of_lengths(lengths, vocab_size=vocabulary, seed=seed)

        return rows(40, 150, 1), rows(3, 20, 2), rows(100, most - 100, 3)


def compile_kernels(decoder: Decoder) -> None:
    """Compile what the packs launch, by all cores: the widest rank of a pack decides, and its rows the tiles."""
    kinds = [
        AdapterSpec(r=r, lora_alpha=1.0, lora_dropout=dropout, use_dora=use_dora)
        for dropout, use_dora in ((0.0, False), (0.1, False), (0.1, True))
        for r in COMPILED_RANKS
    ]
    begun = time.perf_counter()
    with KernelCompiler() as compiler:
        collect_launches(
            decoder, compiler=compiler, target_linears=decoder.linears, adapters=kinds, usual=110,
            pass_tokens=(128, 600, 1500, 8000), numerics=Numerics.EXACT,
        )  # fmt: skip
        found = compiler.wait()
    print(f"{found.num_kernels} kernels compiled in {time.perf_counter() - begun:.1f} s", flush=True)
