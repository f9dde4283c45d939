"""An adapter directory is whole, or what was there stays."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from cohort.adapter_files.write import AdapterContent, write_adapter_directory
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_format import WEIGHTS_FILE, read_adapter
from cohort.adapters.spec import AdapterSpec
from cohort.models.known_tokenizer import tokenizer_files


class FakeTokenizer:
    def save_pretrained(self, folder: str) -> None:
        (Path(folder) / "tokenizer.json").write_text("{}")
        (Path(folder) / "more").mkdir()


def content(*, card: str = "# card\n") -> AdapterContent:
    layout = AdapterLayout({"layers.0.q": (8, 8), "layers.1.q": (8, 4)})
    return AdapterContent(
        weights_rD=torch.arange(4 * layout.width, dtype=torch.float32).reshape(4, -1),
        layout=layout,
        spec=AdapterSpec(r=4, lora_alpha=8.0),
        base_model="org/model",
        linears=("layers.0.q", "layers.1.q", "layers.0.k"),
        card=card,
        tokenizer_files=tokenizer_files(FakeTokenizer()),
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_adapter_directory(tmp_path / "deep" / "best", content())
    folder = tmp_path / "deep" / "best"
    assert (folder / "README.md").read_text() == "# card\n"
    assert (folder / "tokenizer.json").read_text() == "{}"
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"], config["target_modules"]) == ("org/model", 4, ["q"])
    found = read_adapter(folder)
    assert found.spec.r == 4
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_weights_that_are_written_already_get_a_second_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_adapter_directory(tmp_path / "trial", content())
    trial = tmp_path / "trial" / WEIGHTS_FILE
    write_adapter_directory(tmp_path / "best", content(card="# best\n"), written=tmp_path / "trial")
    assert (tmp_path / "best" / WEIGHTS_FILE).samefile(trial)
    assert (tmp_path / "trial" / "README.md").read_text() == "# card\n"
    # removing one leaves the other
    shutil.rmtree(tmp_path / "trial")
    assert read_adapter(tmp_path / "best").spec.r == 4

    def refuse(*_: object) -> None:
        raise PermissionError("this file system has no links")

    monkeypatch.setattr(os, "link", refuse)
    write_adapter_directory(tmp_path / "copy", content(), written=tmp_path / "best")
    assert not (tmp_path / "copy" / WEIGHTS_FILE).samefile(tmp_path / "best" / WEIGHTS_FILE)
    assert (tmp_path / "copy" / WEIGHTS_FILE).read_bytes() == (tmp_path / "best" / WEIGHTS_FILE).read_bytes()


def test_a_directory_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    write_adapter_directory(tmp_path / "best", content())
    # no text file can hold half of a surrogate pair: the card fails after the weights are written
    with pytest.raises(UnicodeEncodeError):
        write_adapter_directory(tmp_path / "best", content(card="\ud800"))
    assert (tmp_path / "best" / "README.md").read_text() == "# card\n"
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    write_adapter_directory(tmp_path / "best", content(card="# other\n"))
    assert (tmp_path / "best" / "README.md").read_text() == "# other\n"
