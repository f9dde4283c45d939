"""What a device holds of a base model that one device, several that each hold all of it, or several together have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.memory.host_streaming import StreamedLayers
from cohort.planning.estimate.device_weights import LINK_SHARE, DeviceWeights
from cohort.scheduling.cost.hardware import KNOWN_GPUS

GIB = 1 << 30
H200 = KNOWN_GPUS["H200"]
# 64 layers of 2 GiB and 2 GiB besides
LAYERS = StreamedLayers(count=0, num_layers=64, layer_bytes=2 * GIB, base_bytes=130 * GIB, on_gpu=True)


def weights(*, streamed: int = 0, wanted: str = "auto", is_gpu: bool = True) -> DeviceWeights:
    return DeviceWeights(
        weight_bytes=130.0 * GIB,
        streamed=replace(LAYERS, count=streamed),
        hardware=replace(H200, is_gpu=is_gpu),
        wanted=wanted,
    )


@pytest.mark.parametrize("found", [weights(), weights(is_gpu=False, streamed=0, wanted="adapter_parallel")])
def test_a_model_that_fits_is_whole_on_each_device(found: DeviceWeights) -> None:
    assert [found.strategy(count) for count in (1, 2, 4)] == ["replicas"] * 3
    assert [found.device_bytes(count) for count in (1, 2)] == [130 * GIB] * 2
    assert found.copy_seconds(2) == 0


def test_a_model_that_does_not_fit_is_streamed_by_one_gpu_and_divided_by_several() -> None:
    found = weights(streamed=22)
    assert [found.strategy(count) for count in (1, 2)] == ["replicas", "adapter_parallel"]
    # 20 layers more than the two buffers hold leave the GPU, and as much has to be free of several
    assert found.device_bytes(1) == 90 * GIB
    for count in (2, 4):
        assert 88 * GIB <= found.device_bytes(count) <= 90 * GIB
    assert weights(streamed=22, wanted="replicas").strategy(2) == "replicas"


def test_all_layers_are_divided_where_the_task_says_so() -> None:
    found = weights(wanted="adapter_parallel")
    assert found.device_bytes(2) == (130 - 64 + 4) * GIB
    # 62 layers forward and 62 back, half of each from the other GPU
    assert found.copy_seconds(2) == pytest.approx(2 * 62 * GIB / (H200.link_bytes_per_second * LINK_SHARE))
    assert found.copy_seconds(4) > found.copy_seconds(2)
