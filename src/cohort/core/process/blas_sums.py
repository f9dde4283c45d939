"""The order in which MKL adds up a row of a product, on Intel processors without AVX-512.

There its ordinary kernels give the last rows of a product other last bits than the same rows elsewhere. In MKL's
strict mode (conditional numerical reproducibility) a row has its bits at any place and in any number of rows. MKL reads
the variable at its first product.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

__all__ = ["keep_order_of_sums"]

STRICT = "AVX2,STRICT"


def keep_order_of_sums(
    environment: MutableMapping[str, str] | None = None, *, cpu_info: Path = Path("/proc/cpuinfo")
) -> None:
    """Set ``MKL_CBWR`` where MKL would compute with AVX2 on an Intel processor; a value of the user's own stays."""
    environment = os.environ if environment is None else environment
    if "MKL_CBWR" in environment:
        return
    try:
        lines = cpu_info.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return
    facts = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in lines)}
    is_limited = environment.get("MKL_ENABLE_INSTRUCTIONS", "").upper() == "AVX2"
    if "GenuineIntel" in facts.get("vendor_id", ()) and (is_limited or "avx512f" not in facts.get("flags", ())):
        environment["MKL_CBWR"] = STRICT
