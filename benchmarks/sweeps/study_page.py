"""Tables of the early-exit study in its page: between two marks stands what the last run found, and nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["markdown_table", "renew_between", "renew_page"]

Rows = Sequence[Mapping[str, Any]]
SETTINGS_HEAD = ("saved, least %", "ratio, mean", "ratio, worst")


def renew_page(page: Path, tables: Mapping[str, Rows]) -> None:
    """Replace every table of the study of rules.

    Raises:
        ValueError: the page lacks a mark.
    """
    renew_between(
        page,
        {
            "spreads": _spreads(tables["spreads"]),
            "by_set": _by_set(tables["rules"], tables["spreads"]),
            "rules": _rules(tables["rules"]),
            "rules_chosen_on": _rules(tables["rules_chosen_on"]),
            "ranks": _ranks(tables["ranks"]),
            "ranks_chosen_on": _ranks(tables["ranks_chosen_on"]),
            "settings": _settings(tables["settings"]),
        },
    )


def renew_between(page: Path, tables: Mapping[str, Sequence[str]]) -> None:
    """Replace what stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->`` by the lines of each name.

    Raises:
        ValueError: the page lacks a mark.
    """
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if begin not in text or end not in text:
            raise ValueError(f"{page} lacks {begin} or {end}")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}" + rest.partition(end)[2]
    page.write_text(text, encoding="utf-8")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _spreads(rows: Rows) -> list[str]:
    head = ["role", "set (model)", "seed", "base", "best", "median", "worst", "median over best", "best configuration"]
    return markdown_table(
        head,
        [
            [
                row["role"],
                row["set"],
                str(row["seed"]),
                "not recorded" if row["base"] is None else f"{row['base']:.3f}",
                f"{row['best']:.4f}",
                f"{row['median']:.4f}",
                f"{row['worst']:.4f}",
                f"{row['median'] / row['best']:.3f}",
                f"rate {row['best_learning_rate']:g}, r {row['best_r']}, batch {row['best_batch_size']}",
            ]
            for row in rows
        ],
    )


def _by_set(rules: Rows, spreads: Rows) -> list[str]:
    """The default rule, set by set: what it saves, and the ratios of the seeds from best to worst."""
    default = next(iter(rules))["rule"]
    found = []
    for name in sorted({row["set"] for row in rules}):
        own = [row for row in rules if (row["rule"], row["set"]) == (default, name)]
        grids = [row for row in spreads if row["set"] == name and row["seed"] in {row["seed"] for row in own}]
        ratios = sorted(row["best_loss_ratio"] for row in own)
        least = min(row["median"] / row["best"] for row in grids)
        found.append(
            [
                name,
                f"{least:.3f}",
                "yes" if all(row["counts"] for row in grids) else "no",
                f"{min(row['samples_saved_percent'] for row in own):.1f}",
                *(f"{ratio:.4f}" for ratio in (ratios[0], statistics.median(ratios), ratios[-1])),
                "yes" if ratios[-1] <= 1.01 else "**no**",
            ]
        )
    head = ["set (model)", "median over best, least", "counts", "saved, least %"]
    return markdown_table([*head, "ratio, best", "ratio, median", "ratio, worst", "all within 1 %"], found)


def _rules(rows: Rows) -> list[str]:
    names = list(dict.fromkeys(row["rule"] for row in rows))
    found = []
    for name in names:
        own = [row for row in rows if row["rule"] == name]
        saved = [row["samples_saved_percent"] for row in own]
        ratios = [row["best_loss_ratio"] for row in own]
        within = sum(ratio <= 1.01 for ratio in ratios)
        found.append(
            [
                name,
                f"{min(saved):.1f}",
                f"{statistics.fmean(saved):.1f}",
                f"{statistics.median(ratios):.4f}",
                f"{max(ratios):.4f}",
                f"{within} of {len(own)}",
                f"{sum(row['best_trial_went_on'] for row in own)} of {len(own)}",
            ]
        )
    head = ["rule", "saved, least %", "saved, mean %", "ratio, median", "ratio, worst", "within 1 %", "best trial kept"]
    return markdown_table(head, found)


def _ranks(rows: Rows) -> list[str]:
    sets = sorted({row["set"] for row in rows})
    found = []
    for name in sets:
        for share in sorted({row["share_percent"] for row in rows if row["set"] == name}):
            own = [row for row in rows if row["set"] == name and row["share_percent"] == share]
            mean = {key: statistics.fmean(float(row[key]) for row in own) for key in ("spearman", "coverage")}
            found.append(
                [
                    name,
                    f"{share:g} %",
                    f"{mean['spearman']:.2f}",
                    f"{100 * mean['coverage']:.0f} %",
                    f"{sum(row['best_kept'] for row in own)} of {len(own)}",
                    f"{max(row['ratio_of_kept'] for row in own):.4f}",
                ]
            )
    head = ["set (model)", "after", "rank correlation", "best quarter covered", "best trial in it", "worst ratio"]
    return markdown_table(head, found)


def _settings(rows: Rows) -> list[str]:
    parts = ("saved_min", "ratio_mean", "ratio_max")
    head = ["settings", *(f"{name}, {where}" for where in ("chosen on", "reported") for name in SETTINGS_HEAD)]
    found = []
    for row in rows:
        numbers = [row.get(f"{where}_{part}") for where in ("chosen_on", "reported") for part in parts]
        texts = ["" if n is None else f"{n:.1f}" if place % 3 == 0 else f"{n:.4f}" for place, n in enumerate(numbers)]
        found.append([row["settings"], *texts])
    return markdown_table(head, found)
