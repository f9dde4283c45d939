"""What a benchmark needs of the machine, said in one sentence where it is not there."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import torch

__all__ = ["missing_of_a_gpu", "need_gpu"]

HOPPER = 9


def need_gpu(*, shape: str | None = None, hopper: bool = False) -> None:
    """End the script with exit code 2 and a sentence on standard error where its kernels cannot run.

    Call it right behind ``parse_args``, so that ``--help`` works everywhere and no model is made in vain.

    Args:
        shape: The model's shape where the script can be tried out with the tiny one, which any device takes.
        hopper: It times the product for Hopper: compute capability 9 and the Triton that this product has run with.
    """
    missing = None if shape == "tiny" else missing_of_a_gpu(hopper=hopper)
    if missing is None:
        return
    found, hint = missing
    kind = "an NVIDIA GPU of compute capability 9 (H100, H200)" if hopper else "an NVIDIA GPU with Triton"
    advice = "a tiny model tries the script out (see --help); " if shape else ""
    print(
        f"{Path(sys.argv[0]).name}: this measures {kind}; {found}.\n{hint} Without one: {advice}`make bench` runs the "
        "benchmarks that this machine can run, and benchmarks/results/ has what was measured on an H200.",
        file=sys.stderr,
    )
    raise SystemExit(2)


def missing_of_a_gpu(*, hopper: bool = False) -> tuple[str, str] | None:
    """Return what was found in place of a GPU that the kernels run on, and what to do; None where there is one."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built for CPUs alone", "With a GPU, install torch's CUDA build."
    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} sees no GPU",
            "With a GPU, see what `nvidia-smi` says and whether CUDA_VISIBLE_DEVICES hides it.",
        )
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed", "Install it: `pip install '.[gpu]'` in the repository."
    if not hopper:
        return None
    from cohort.kernels.packed_linear.hopper.launch import TRITON_VERSION  # needs Triton

    capability, version = torch.cuda.get_device_capability(), importlib.metadata.version("triton")
    if torch.version.hip is not None or capability[0] != HOPPER:
        return f"{torch.cuda.get_device_name()} has compute capability {capability[0]}.{capability[1]}", "Use a Hopper."
    if not version.startswith(TRITON_VERSION):
        return f"Triton {version} is installed", f"Install Triton {TRITON_VERSION}, the one this product has run with."
    return None
