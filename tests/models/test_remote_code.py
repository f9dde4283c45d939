"""A checkpoint whose model is code of its own: refused unless the machine's user names it, and then trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError, UnsupportedModelError
from cohort.models.config_file import read_config
from cohort.models.remote_code import TRUST_VARIABLE, may_run_code
from cohort.models.tokenizer import load_tokenizer
from cohort.models.weights import load_decoder
from cohort.prepare.base_model.model_computation import model_computation
from cohort.prepare.fingerprints import model_fingerprint
from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import executor_of, rows_of, spec_of

CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class QuokkaConfig(LlamaConfig):
    model_type = "quokka"

class QuokkaForCausalLM(LlamaForCausalLM):
    config_class = QuokkaConfig
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny("llama", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    own: dict[str, Any] = {
        "model_type": "quokka",
        "architectures": ["QuokkaForCausalLM"],
        "auto_map": {
            "AutoConfig": "modeling_quokka.QuokkaConfig",
            "AutoModelForCausalLM": "modeling_quokka.QuokkaForCausalLM",
        },
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **own}))
    (tmp_path / "model" / "modeling_quokka.py").write_text(CODE)
    return tmp_path / "model"


def test_it_is_refused_and_the_message_says_how_to_ask(folder: Path) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read_config(folder)
    said = str(caught.value)
    assert "runs code of its own (modeling_quokka.py)" in said
    assert f"set {TRUST_VARIABLE}={folder}" in said


def test_another_model_s_name_does_not_allow_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, f"owner/quokka, {folder.parent}")
    with pytest.raises(UnsupportedModelError):
        read_config(folder)


@pytest.mark.filterwarnings("ignore")
def test_where_it_is_asked_for_it_trains_as_the_model_it_copies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, f"owner/other,{folder}")
    config = read_config(folder)
    assert config.bridged is not None
    assert config.bridged.own_code == ("modeling_quokka.py",)
    assert str(model_computation(config)).endswith("and code of the checkpoint (modeling_quokka.py)")
    decoder, native = load_decoder(folder), load_decoder(save_tiny("llama", folder.parent / "native"))
    losses = []
    for each in (decoder, native):
        executor = executor_of(each, rows_of(12))
        executor.load(spec_of())
        losses.append([executor.step()[0].loss for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_other_code_is_another_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, str(folder))
    before = model_fingerprint(folder)
    (folder / "modeling_quokka.py").write_text(CODE + "# changed\n")
    assert model_fingerprint(folder) != before


def test_a_tokenizer_s_code_is_not_run_either(folder: Path) -> None:
    (folder / "tokenization_quokka.py").write_text("raise SystemExit('it was run')\n")
    (folder / "vocab.txt").write_text("a\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["tokenization_quokka.QuokkaTokenizer", None]}})
    )
    with pytest.raises(InputError, match="no tokenizer that loads"):
        load_tokenizer(folder)


def test_a_name_of_the_hub_stands_for_its_place_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, "owner/quokka@v1")
    assert may_run_code(Path("/cache/models--owner--quokka/snapshots/abc"))
    assert not may_run_code(Path("/cache/models--owner--quokka2/snapshots/abc"))
