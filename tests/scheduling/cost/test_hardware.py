import pytest

from cohort.core.errors import InputError
from cohort.scheduling.cost.hardware import KNOWN_GPUS, known_gpu, parse_hardware


@pytest.mark.parametrize(
    ("text", "name", "nodes", "gpus"),
    [
        ("H200", "H200", 1, 1),
        ("8xH200", "H200", 1, 8),
        ("2x8xh100", "H100", 2, 8),
        ("4 x a100-80gb", "A100-80GB", 1, 4),
    ],
)
def test_hardware_is_read_as_users_write_it(text: str, name: str, nodes: int, gpus: int) -> None:
    choice = parse_hardware(text, where="--dry-run")
    assert (choice.hardware.name, choice.num_nodes, choice.num_gpus) == (name, nodes, gpus)
    assert choice.has_count == ("x" in text.lower())


@pytest.mark.parametrize("text", ["8xH900", "", "8x", "0xH200", "H200x8", "8"])
def test_unknown_hardware_lists_what_is_known(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_hardware(text, where="--dry-run")
    (problem,) = caught.value.problems
    assert str(problem.where) == "--dry-run"
    assert text == "0xH200" or all(name in problem.allowed for name in KNOWN_GPUS)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GH200 480GB", "GH200"),
    ],
)
def test_a_driver_s_name_is_recognised(device: str, name: str) -> None:
    found = known_gpu(device)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("device", ["NVIDIA T1000", "NVIDIA L40", "NVIDIA A100-SXM-64GB", "NVIDIA RTX A4090"])
def test_a_gpu_that_nobody_described_is_not_taken_for_another(device: str) -> None:
    assert known_gpu(device) is None
