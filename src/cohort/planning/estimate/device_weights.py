"""What each of several devices holds of a base model, and what it fetches of it in a pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cohort.memory.host_streaming import StreamedLayers
from cohort.models.streaming.weight_ring import NUM_BUFFERS
from cohort.scheduling.cost.hardware import Hardware

__all__ = ["LINK_SHARE", "DeviceWeights"]

# of a link's rate, what copies of a layer's parts reach: 334 of 450 GB/s from three peers at once on H200s
LINK_SHARE = 0.74


@dataclass(frozen=True, kw_only=True)
class DeviceWeights:
    """The base model of a task on one kind of hardware.

    Attributes:
        weight_bytes: The whole model.
        streamed: The layers that one device streams from host memory.
        hardware: One device.
        wanted: The task's ``strategy``.
    """

    weight_bytes: float
    streamed: StreamedLayers
    hardware: Hardware
    wanted: str

    def strategy(self, num_gpus: int) -> str:
        """Return how ``num_gpus`` devices share the model, as a run chooses it: all of it on each if it fits."""
        if num_gpus == 1 or not self.hardware.is_gpu:
            return "replicas"
        divides = self.wanted == "adapter_parallel" or (self.wanted == "auto" and self.streamed.count > 0)
        return "adapter_parallel" if divides else "replicas"

    def device_bytes(self, num_gpus: int) -> int:
        """Return the bytes of the model on each device, buffers included."""
        if self.strategy(num_gpus) == "replicas":
            return self.streamed.device_bytes if self.streamed.count else math.ceil(self.weight_bytes)
        freed = self.divided_layers(num_gpus) * self.streamed.layer_bytes * (1 - 1 / num_gpus)
        return math.ceil(self.weight_bytes - freed) + NUM_BUFFERS * self.streamed.layer_bytes

    def copy_seconds(self, num_gpus: int) -> float:
        """Return what the copies of layers take in a training pass; they run while other layers compute."""
        if self.strategy(num_gpus) == "replicas":
            return self.streamed.seconds_per_pass
        # forward and backward; the layers that lie in the buffers at the turn are fetched once
        fetches = 2 * (self.divided_layers(num_gpus) - NUM_BUFFERS)
        part = self.streamed.layer_bytes * (num_gpus - 1) / num_gpus
        return fetches * part / max(self.hardware.link_bytes_per_second * LINK_SHARE, 1e9)

    def divided_layers(self, num_gpus: int) -> int:
        """Return how many layers are divided: all where the task asks for it, else the fewest that free enough."""
        streamed = self.streamed
        if self.wanted == "adapter_parallel":
            return streamed.num_layers
        missing = streamed.base_bytes - streamed.device_bytes + NUM_BUFFERS * streamed.layer_bytes
        least = math.ceil(missing / (streamed.layer_bytes * (1 - 1 / num_gpus)))
        return min(max(least, NUM_BUFFERS + 1), streamed.num_layers)
