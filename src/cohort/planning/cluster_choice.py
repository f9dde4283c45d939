"""The devices of a plan: those of this machine, or hardware that is only named."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.core.errors import InputError, Problem
from cohort.machine.local_slots import choose_slots, hardware_of_slots
from cohort.scheduling.cost.hardware import Hardware, parse_hardware
from cohort.scheduling.placement.records import Cluster

__all__ = ["ClusterChoice", "choose_cluster"]


@dataclass(frozen=True, kw_only=True)
class ClusterChoice:
    """Devices of one kind, and whether they are only named."""

    hardware: Hardware
    cluster: Cluster
    is_dry_run: bool

    @property
    def label(self) -> str:
        """Return ``8 x H200``, or ``2 x 8 x H200`` for two nodes."""
        nodes = len(self.cluster.nodes)
        per_node = self.cluster.num_gpus // max(1, nodes)
        kind = self.hardware.name if self.hardware.is_gpu else f"CPU worker ({self.hardware.name})"
        return f"{nodes} x {per_node} x {kind}" if nodes > 1 else f"{per_node} x {kind}"


def choose_cluster(*, gpus: int | None, workers: int | None, dry_run: str | None) -> ClusterChoice:
    """Return what to plan for.

    Args:
        gpus: GPUs of this machine, or how many of those that ``dry_run`` names.
        workers: CPU workers of this machine instead.
        dry_run: Hardware such as ``8xH200``, which need not be here.

    Raises:
        InputError: no device, unknown hardware, two numbers of GPUs, or more GPUs than there are here.
    """
    if dry_run is None:
        elsewhere = "For GPUs that are not here, write --dry-run 8xH200."
        slots = choose_slots(gpus=gpus, workers=workers, elsewhere=elsewhere)
        return ClusterChoice(
            hardware=hardware_of_slots(slots), cluster=Cluster.of_one_node(len(slots)), is_dry_run=False
        )
    choice = parse_hardware(dry_run, where="--dry-run")
    problems = []
    if workers is not None:
        problems.append(
            Problem(
                where="--workers",
                found=f"--workers {workers} with --dry-run {dry_run}",
                allowed="one of the two",
                hint="Leave --workers out: --dry-run plans for GPUs.",
            )
        )
    if gpus is not None and gpus < 1:
        problems.append(
            Problem(
                where="--gpus", found=str(gpus), allowed="1 or more", hint=f"Write --dry-run 8x{choice.hardware.name}."
            )
        )
    elif gpus is not None and choice.has_count and gpus != choice.num_gpus * choice.num_nodes:
        problems.append(
            Problem(
                where="--gpus",
                found=f"--gpus {gpus} with --dry-run {dry_run}",
                allowed="one number of GPUs",
                hint="Leave --gpus out.",
            )
        )
    if problems:
        raise InputError(problems)
    # --gpus counts the GPUs of a --dry-run that names none, such as H200
    per_node = gpus if gpus is not None and not choice.has_count else choice.num_gpus
    # ids go on from node to node: a GPU's number must name one place in the whole plan
    cluster = Cluster(
        nodes={
            f"node{node}" if choice.num_nodes > 1 else "local": tuple(range(node * per_node, (node + 1) * per_node))
            for node in range(choice.num_nodes)
        }
    )
    return ClusterChoice(hardware=choice.hardware, cluster=cluster, is_dry_run=True)
