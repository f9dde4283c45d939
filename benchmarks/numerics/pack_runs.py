"""One pack of trials, drawn at random and trained with everything that may happen around a trial."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.numerics.bases import WIDEST_RANKS
from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import aligned_rank
from cohort.adapters.spec import AdapterSpec
from cohort.core.memory_records import PassKind
from cohort.core.numerics import Numerics
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["PROBES", "Found", "Pack", "Run", "draw_pack"]


def _trial(trial_id: int, *, r: int, batch_size: int, dropout: float = 0.0, use_dora: bool = False) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=100 + trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r, lora_dropout=dropout, use_dora=use_dora),
        learning_rate=1e-3,
        batch_size=batch_size,
        num_steps=1000,
    )


RANKS = (8, 12, 16, 24, 32, 64, 128, 256)
# the trials whose bits are compared; 200 ranks take two passes
PROBES = (
    _trial(0, r=16, batch_size=3),
    _trial(1, r=8, batch_size=1, dropout=0.1),
    _trial(2, r=64, batch_size=4),
    _trial(3, r=200, batch_size=2),
    _trial(4, r=24, batch_size=2, dropout=0.1, use_dora=True),
)


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Trials that train together, and how.

    Attributes:
        probes: Those whose bits are compared.
        recorded: Whether passes are recorded as CUDA graphs where they can be.
        disturbed: Whether trials are parked, neighbours replaced and the token budget lowered on the way.
    """

    probes: tuple[TrialSpec, ...]
    neighbours: tuple[TrialSpec, ...] = ()
    token_budget: int = 16384
    recorded: bool = False
    disturbed: bool = False

    @property
    def trials(self) -> tuple[TrialSpec, ...]:
        return (*self.probes, *self.neighbours)

    def described(self) -> dict[str, Any]:
        return {
            "size": len(self.trials),
            "ranks": sorted({spec.adapter.r for spec in self.trials}),
            "recorded": self.recorded,
            "token_budget": self.token_budget,
        }


@dataclass(frozen=True)
class Found:
    """Losses of all steps and of an evaluation, and the weights [r, D] after them."""

    losses: list[float]
    weights: Tensor


def draw_pack(draw: random.Random, *, size: int, recorded: bool, probes: Sequence[TrialSpec] | None = None) -> Pack:
    """Return a pack of ``size`` trials; one that is recorded has no dropout, which a graph does not know."""
    widest = draw.choice((*WIDEST_RANKS, WIDEST_RANKS[-1]))
    if probes is None:
        able = [probe for probe in PROBES if not (recorded and probe.adapter.lora_dropout)]
        able = [probe for probe in able if probe.adapter.r <= widest]
        probes = draw.sample(able, min(size - 1, draw.randint(1, len(able))))
    # the first has the widest rank; large packs have few wide ones
    ranks = [r for r in RANKS if r <= widest]
    chosen = [widest, *(draw.choice(ranks if size < 12 else [*ranks[:3], ranks[-1]]) for _ in range(size))]
    neighbours = [
        _trial(
            10 + index,
            r=chosen[index],
            # a few thousand tokens a step
            batch_size=draw.randint(1, 6) if size < 12 else draw.randint(1, 2),
            dropout=0.0 if recorded else draw.choice([0.0, 0.0, 0.2]),
            # a graph knows no magnitudes either
            use_dora=not recorded and draw.random() < 0.15,
        )
        for index in range(size - len(probes))
    ]
    return Pack(
        probes=tuple(probes),
        neighbours=tuple(neighbours),
        token_budget=draw.choice([1500, 4000, 4000 if recorded else 16384]),
        recorded=recorded,
        disturbed=True,
    )


class Run:
    """Trains one pack until each of its probes has made its steps.

    Attributes:
        events: How often each kind of disturbance happened.
    """

    def __init__(
        self,
        decoder: Decoder,
        pack: Pack,
        rows: TokenisedRows,
        *,
        steps: int,
        draw: random.Random | None = None,
        other_rows: Sequence[TokenisedRows] = (),
        states: Mapping[int, TrialState] | None = None,
        losses: Mapping[int, Sequence[float]] | None = None,
        numerics: Numerics = Numerics.EXACT,
    ) -> None:
        """Load the pack's trials in any order.

        Args:
            states, losses: Where probes go on that trained elsewhere before, and their losses there.
        """
        self._pack, self._rows, self._steps = pack, rows, steps
        self._draw = draw or random.Random(0)
        self._other_rows = [rows, *other_rows]
        self.events: Counter[str] = Counter()
        self.executor = Executor(
            decoder,
            target_linears=decoder.linears,
            train_rows=rows,
            settings=ExecutorSettings(
                num_slots=len(pack.trials),
                num_rank_rows=sum(aligned_rank(spec.adapter.num_rows) for spec in pack.trials),
                token_budget=pack.token_budget,
                evaluation_token_budget=pack.token_budget,
                graph_tokens=4096 if pack.recorded and decoder.device.type == "cuda" else 0,
                numerics=numerics,
            ),
            device=decoder.device,
            compute_dtype=decoder.dtype,
        )
        self._probes = {spec.trial_id: spec for spec in pack.probes}
        self._neighbours = {spec.trial_id: spec for spec in pack.neighbours}
        self._parked: dict[int, TrialState] = {}
        self.losses = {trial_id: list((losses or {}).get(trial_id, ())) for trial_id in self._probes}
        order = list(pack.trials)
        self._draw.shuffle(order)
        for spec in order:
            if spec.trial_id in self._probes:
                self.executor.load(spec, (states or {}).get(spec.trial_id))
            else:
                self._load_neighbour(spec)

    def step(self) -> bool:
        """Train the residents that have steps left; return whether a probe has some after it."""
        if self._pack.disturbed:
            self._disturb()
        wanted = [t for t in self.executor.resident if t not in self._probes or len(self.losses[t]) < self._steps]
        for done in self.executor.step(wanted):
            if done.trial_id in self._probes:
                self.losses[done.trial_id].append(done.loss)
        return any(len(own) < self._steps for own in self.losses.values())

    def found(self) -> dict[int, Found]:
        """Train to the end; return losses, evaluation and weights of each probe."""
        while self.step():
            pass
        self.return_all()
        evaluated = self.executor.evaluate(self.executor.resident, rows=self._rows, row_ids=range(11))
        if self.executor.captured is not None:
            self.events["replays"] = self.executor.captured.num_replays
        return {
            trial_id: Found([*losses, evaluated[trial_id].loss], self.executor.weights(trial_id))
            for trial_id, losses in self.losses.items()
        }

    def return_all(self) -> None:
        """Load the probes that are parked."""
        for trial_id in list(self._parked):
            self._return(trial_id)

    def _load_neighbour(self, spec: TrialSpec) -> None:
        """Load a trial whose A and B are both drawn, on the device: initial weights on the host take seconds."""
        bank = self.executor.bank
        generator = torch.Generator(bank.weights_RD.device).manual_seed(spec.seed)
        shape = (spec.adapter.num_rows, bank.layout.width)
        weights = torch.randn(shape, generator=generator, device=bank.weights_RD.device) * 0.02
        self.executor.load(
            spec, TrialState(adapter=AdapterState(weights=weights)), rows=self._draw.choice(self._other_rows)
        )

    def _return(self, trial_id: int) -> None:
        self.executor.load(self._probes[trial_id], self._parked.pop(trial_id))

    def _disturb(self) -> None:
        """Let what may happen between two steps happen now and then."""
        draw = self._draw
        for trial_id in list(self._parked):
            if draw.random() < 0.5 or len(self.executor.resident) == 0:
                self._return(trial_id)
        unparked = [t for t in self._probes if t not in self._parked]
        if draw.random() < 0.12 and unparked:
            trial_id = draw.choice(unparked)
            self._parked[trial_id] = self.executor.unload(trial_id, on_device=draw.random() < 0.5)
            self.events["parked"] += 1
            if not self.executor.resident:
                self._return(trial_id)
        if draw.random() < 0.08 and self._neighbours:
            gone = draw.choice(list(self._neighbours))
            spec = self._neighbours.pop(gone)
            self.executor.drop(gone)
            number = 1000 + self.events["replaced"]
            fresh = replace(spec, trial_id=number, seed=number, batch_size=draw.randint(1, 3))
            self._neighbours[number] = fresh
            self._load_neighbour(fresh)
            self.events["replaced"] += 1
        if draw.random() < 0.06:
            budget = self.executor.token_budgets[PassKind.TRAIN]
            # a large pack in passes of a row or two takes minutes
            least = 60 if len(self._pack.trials) < 12 else 600
            self.executor.lower_token_budgets({PassKind.TRAIN: max(least, round(budget * draw.uniform(0.3, 0.95)))})
            self.events["budget lowered"] += 1
