"""The page about metrics names every one of them, and its examples are valid."""

from __future__ import annotations

import re
from typing import Any

from cohort.core.source_location import Place
from cohort.metrics import METRIC_KINDS
from cohort.metrics.functions import load_function
from cohort.tasks.sections.evaluation_section import EvaluationSection
from cohort.tasks.yaml_lines import parse_yaml
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs/how-to/choose-a-metric.md").read_text(encoding="utf-8")


def test_every_metric_is_in_the_table() -> None:
    listed = re.findall(r"^\| `([a-z0-9_]+)` \|", PAGE, flags=re.MULTILINE)
    kinds = {kind.name: kind for kind in METRIC_KINDS.built_in()}
    assert set(kinds) <= set(listed)
    assert set(listed) - set(kinds) == {"loss", "choice_accuracy"}
    reads = dict(re.findall(r"^\| `([a-z0-9_]+)` \|.*\|([^|]*)\|$", PAGE, flags=re.MULTILINE))
    assert all(("`normalize`" in reads[name]) == kind.reads_normalize for name, kind in kinds.items())


def test_the_sections_are_valid_and_the_function_is_a_metric(tmp_path: Any) -> None:
    sections = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(sections) == 3
    for text in sections:
        document = parse_yaml(text, where=Place(file="page"))
        assert document is not None
        EvaluationSection(**document.data["evaluation"])
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    score = load_function(f"{tmp_path / 'mine.py'}:close_enough").score
    assert (score("12.5", {"distance_km": 10}), score("far", {"distance_km": 10})) == (1, 0)
