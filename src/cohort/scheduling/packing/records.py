"""Trials, packs and plans of the offline packing planner, as immutable records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cohort.core.errors import InputError, Problem
from cohort.scheduling.cost.model import AdapterWork, CostModel

__all__ = ["PackJob", "PackPlan", "PackItem", "PackingProblem", "ItemType", "jobs_in_order"]


@dataclass(frozen=True, kw_only=True)
class PackItem:
    """What is to be packed: an adapter that trains to its end.

    Attributes:
        work: What it adds to a pack.
        state_bytes: Its weights, gradients and moments on one GPU, by number of GPUs of the pack.
    """

    trial_id: int
    work: AdapterWork
    state_bytes: Mapping[int, int]


@dataclass(frozen=True)
class ItemType:
    """What makes items interchangeable: equal work and equal state."""

    work: AdapterWork
    state_bytes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, trial: PackItem) -> ItemType:
        return cls(work=trial.work, state_bytes=tuple(sorted(trial.state_bytes.items())))


@dataclass(frozen=True, kw_only=True)
class PackingProblem:
    """The trials, GPUs and memory of one plan.

    Attributes:
        trials: All of them are trained to their end.
        num_gpus: GPUs of one node.
        cost: Seconds of a pack; its numbers of GPUs are the degrees that may be chosen.
        room_bytes: Bytes on each GPU for adapter state and the activations of a pass, by degree: load factor * memory
            - base shard. Degrees without an entry, or with a negative one, cannot hold the base model.
        activation_bytes: Fixed bytes of a pass.
        activation_bytes_per_token: More for each token of it.
        token_budget: Tokens of a pass: a larger pack is split into micro-batches. None never splits.
        most_trials: Slots of a pack; None for as many as fit.
    """

    trials: tuple[PackItem, ...]
    num_gpus: int
    cost: CostModel
    room_bytes: Mapping[int, float]
    activation_bytes: float = 0.0
    activation_bytes_per_token: float = 0.0
    token_budget: int | None = None
    most_trials: int | None = None

    def __post_init__(self) -> None:
        ids = [trial.trial_id for trial in self.trials]
        if len(set(ids)) != len(ids):
            raise ValueError("two trials have the same id")
        # A floor by launches makes a step's seconds non-convex; the integer programs below rely on lower bounds alone.
        if any(cost.launches is not None for cost in self.cost.by_num_gpus.values()):
            raise ValueError("the packing planner optimises convex costs; fit one without launches")
        for trial in self.trials:
            if not set(self.degrees) <= set(trial.state_bytes):
                raise ValueError(f"trial {trial.trial_id} gives no state bytes for some of the degrees {self.degrees}")

    @cached_property
    def by_type(self) -> Mapping[ItemType, tuple[PackItem, ...]]:
        """The trials, those that are interchangeable together."""
        # a plan counts trials of a type: among those that cost the same it makes no difference which
        found: dict[ItemType, list[PackItem]] = {}
        for trial in self.trials:
            found.setdefault(ItemType.of(trial), []).append(trial)
        return {type_: tuple(trials) for type_, trials in found.items()}

    @property
    def degrees(self) -> tuple[int, ...]:
        """Numbers of GPUs that a pack may run on, ascending: powers of two that hold the base and have costs."""
        return tuple(
            degree
            for degree in sorted(self.cost.by_num_gpus)
            # Powers of two, as in PLoRA 5.
            if degree <= self.num_gpus and degree & (degree - 1) == 0 and self.room_bytes.get(degree, -1.0) >= 0
        )

    def pass_bytes(self, num_tokens: float) -> float:
        """Return the activation bytes that a pack of ``num_tokens`` a step needs.

        With a token budget they are those of a full micro-batch whatever the pack: a run sets aside a pass of its
        budget, since the packs that share the GPU later may fill it.
        """
        counted = num_tokens if self.token_budget is None else self.token_budget
        return self.activation_bytes + self.activation_bytes_per_token * counted

    def fits(self, pack: Sequence[PackItem], *, num_gpus: int) -> bool:
        if self.most_trials is not None and len(pack) > self.most_trials:
            return False
        tokens = sum(trial.work.num_tokens for trial in pack)
        state = sum(trial.state_bytes[num_gpus] for trial in pack)
        return self.pass_bytes(tokens) + state <= self.room_bytes[num_gpus]

    def seconds(self, pack: Sequence[PackItem], *, num_gpus: int) -> float:
        return self.cost.seconds([trial.work for trial in pack], num_gpus=num_gpus)

    def check_plannable(self) -> None:
        """Refuse a problem without a solution.

        Raises:
            InputError: no GPUs, a base model that fits on none of the degrees, or trials that fit nowhere alone.
        """
        problems = []
        if self.num_gpus < 1:
            hint = "Give the number of GPUs, at least 1."
            problems.append(Problem(where="gpus", found=str(self.num_gpus), allowed="1 or more", hint=hint))
        elif not self.degrees:
            problems.append(
                Problem(
                    where="model_name_or_path",
                    found="a base model that leaves no room on its GPUs",
                    allowed=f"a base that fits on at most {self.num_gpus} GPUs",
                    hint="Use more GPUs, a smaller model or a frozen-weight format with fewer bytes.",
                )
            )
        else:
            problems += [
                Problem(
                    where=f"trial {trial.trial_id}: r",
                    found=f"{trial.work.r}, whose training state does not fit next to the base model on any degree",
                    allowed=f"what fits on one of {self.degrees} GPUs",
                    hint="Choose a smaller r or batch_size, or GPUs with more memory.",
                )
                for trial in self.trials
                if not any(self.fits([trial], num_gpus=degree) for degree in self.degrees)
            ]
        if problems:
            raise InputError(problems)


@dataclass(frozen=True, kw_only=True)
class PackJob:
    """One pack: which trials train together on which GPUs, from when to when."""

    trial_ids: tuple[int, ...]
    gpu_ids: tuple[int, ...]
    start_seconds: float
    end_seconds: float

    @property
    def num_gpus(self) -> int:
        return len(self.gpu_ids)


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    """All packs, by start.

    Attributes:
        jobs: Every trial is in exactly one.
        policy: What made the plan.
        num_solves: Integer programs solved for it.
        num_unproven: Those that hit their limit; their best pack so far was used.
    """

    jobs: tuple[PackJob, ...]
    num_gpus: int
    policy: str
    num_solves: int = 0
    num_unproven: int = 0

    @property
    def makespan_seconds(self) -> float:
        return max((job.end_seconds for job in self.jobs), default=0.0)

    @property
    def approximation_ratio(self) -> float:
        """PLoRA's AR: makespan over the time the same packs would take on GPUs that are never idle."""
        # It says nothing about other packs (it is 1 when every job runs on all GPUs); the figure to quote is makespan
        # over the lower bound over all packings.
        area = sum(job.num_gpus * (job.end_seconds - job.start_seconds) for job in self.jobs)
        return self.num_gpus * self.makespan_seconds / area if area else 1.0


def jobs_in_order(
    packs: Iterable[tuple[Sequence[PackItem], int | Sequence[int], float]],
    *,
    num_gpus: int,
    free_from: Sequence[float] | None = None,
) -> tuple[PackJob, ...]:
    """Return jobs for packs given in the order in which they take their GPUs.

    Args:
        packs: Trials, the GPUs or how many of those that are free earliest, and seconds.
        free_from: When each GPU becomes free, in seconds; None: all are free at 0.
    """
    free = [0.0] * num_gpus if free_from is None else list(free_from)
    jobs = []
    for trials, wanted, seconds in packs:
        # by number among GPUs that are free at the same time, so that the same packs give the same jobs
        gpus = wanted if not isinstance(wanted, int) else sorted(range(num_gpus), key=lambda g: (free[g], g))[:wanted]
        start = max(free[gpu] for gpu in gpus)
        for gpu in gpus:
            free[gpu] = start + seconds
        jobs.append(
            PackJob(
                trial_ids=tuple(sorted(trial.trial_id for trial in trials)),
                gpu_ids=tuple(sorted(gpus)),
                start_seconds=start,
                end_seconds=start + seconds,
            )
        )
    return tuple(sorted(jobs, key=lambda job: (job.start_seconds, job.gpu_ids)))
