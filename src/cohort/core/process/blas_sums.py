"""How MKL multiplies on a processor: with which vectors, and in which order it adds up a row of a product.

On Intel processors without AVX-512 its ordinary kernels give the last rows of a product other last bits than the same
rows elsewhere. In MKL's strict mode (conditional numerical reproducibility) a row has its bits at any place and in any
number of rows. MKL reads the variable at its first product.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

__all__ = ["keep_order_of_sums", "mkl_takes_avx512"]

STRICT = "AVX2,STRICT"
_CPU_INFO = Path("/proc/cpuinfo")
# What a user can limit MKL with: its instructions by the one, the order of its sums, and instructions with it, by the
# other.
_INSTRUCTIONS, _ORDER = "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"


def keep_order_of_sums(environment: MutableMapping[str, str] | None = None, *, cpu_info: Path = _CPU_INFO) -> None:
    """Set ``MKL_CBWR`` where MKL would compute with AVX2 on an Intel processor; a value of the user's own stays."""
    environment = os.environ if environment is None else environment
    if _ORDER in environment:
        return
    facts = _facts(cpu_info)
    is_limited = environment.get(_INSTRUCTIONS, "").upper() == "AVX2"
    if _is_intel(facts) and (is_limited or "avx512f" not in facts.get("flags", ())):
        environment[_ORDER] = STRICT


def mkl_takes_avx512(environment: Mapping[str, str] | None = None, *, cpu_info: Path = _CPU_INFO) -> bool:
    """Return whether MKL multiplies with AVX-512: on Intel processors that have it, unless the user limits MKL.

    On those of others MKL takes AVX2 at most. Where the system does not describe its processor, the answer is no.
    """
    environment = os.environ if environment is None else environment
    facts = _facts(cpu_info)
    is_limited = _ORDER in environment or not environment.get(_INSTRUCTIONS, "AVX512").upper().startswith("AVX512")
    return _is_intel(facts) and "avx512f" in facts.get("flags", ()) and not is_limited


def _facts(cpu_info: Path) -> dict[str, list[str]]:
    """Return what the system says of the first processor; nothing where it says nothing."""
    try:
        lines = cpu_info.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.split() for name, _, value in (line.partition(":") for line in lines)}


def _is_intel(facts: Mapping[str, list[str]]) -> bool:
    return "GenuineIntel" in facts.get("vendor_id", ())
