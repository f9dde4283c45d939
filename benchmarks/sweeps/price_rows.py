"""What a result about the price of a sweep says: its rows, its headline, its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.sweeps.replayed_sweep import SweepTimes
from cohort.tuning import EarlyExitSettings

__all__ = ["FULL_ROWS", "TABLE_MS", "price_columns", "price_headline", "price_row"]

FULL_ROWS = 7473
# performance.md's steps of batch 1 x 200 tokens: PEFT at batch 1 waits for the host, whose speed varies by the day
TABLE_MS = {"8b": 157.0, "1b": 96.0}


def price_row(
    name: str,
    early_exit: EarlyExitSettings,
    times: SweepTimes,
    *,
    peft: Mapping[int, Mapping[str, float]],
    shape: str,
    num_rows: int,
) -> dict[str, Any]:
    row: dict[str, Any] = {"variant": name, "select_fraction": early_exit.select_fraction, **asdict(times)}
    row["tokens_per_second"] = times.trained_tokens / times.parts["training"]
    if peft:
        one, growth = peft[1]["seconds"], FULL_ROWS / num_rows
        row["price"] = times.seconds / one
        row["price_vs_batch8"] = times.seconds / peft[8]["seconds"]
        row["price_all_in"] = (times.seconds + times.state_seconds) / one
        row["price_full_data"] = (times.seconds * growth + times.state_seconds) / (one * growth)
    if shape in TABLE_MS:
        one_run = num_rows * TABLE_MS[shape] / 1e3
        row["price_against_table"] = times.seconds / one_run
        row["price_against_table_all_in"] = (times.seconds + times.state_seconds + times.capture_seconds) / one_run
    return row


def price_headline(found: Sequence[Mapping[str, Any]], *, shape: str) -> dict[str, float]:
    suffix = {"selection_only": "_selection_only", "recorded_exits": "", "83_saved": "_83_saved"}
    headline = {f"sweep_price_{shape}{suffix[row['variant']]}": row["price"] for row in found if "price" in row}
    for row in found:
        if row["variant"] == "recorded_exits":
            headline[f"sweep_saved_percent_{shape}"] = 100 * row["saved_share"]
            for name in ("vs_batch8", "full_data", "against_table"):
                if f"price_{name}" in row:
                    headline[f"sweep_price_{shape}_{name}"] = row[f"price_{name}"]
            if "step_efficiency" in row:
                headline[f"sweep_step_efficiency_{shape}"] = row["step_efficiency"]
    return headline


def price_columns(*, has_peft: bool) -> list[str]:
    shown = ["variant", "saved_share", "seconds", "state_seconds", "capture_seconds", "tokens_per_second", "passes"]
    prices = ["price", "price_vs_batch8", "price_all_in", "price_full_data"] if has_peft else []
    against_table = ["price_against_table", "price_against_table_all_in"]
    return [*shown, "replayed_passes", "step_efficiency", *prices, *against_table]
