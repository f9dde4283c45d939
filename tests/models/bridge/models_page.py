"""The table of docs/models.md, made by trying every architecture: python -m tests.models.bridge.models_page [NAME ...].

Without names all are tried (a quarter of an hour) and the table is written; with names their rows are printed.
"""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from cohort.core.errors import InputError
from cohort.models.bridge.loading import prove_either_way, wrap_model
from cohort.models.config_file import read_config
from cohort.models.weight_formats import PLAIN
from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import Compared, compare

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
MOST = 1e-5

ARCHITECTURES = """
afmoe apertus arcee axk1 axk2 bamba biogpt bitnet bloom codegen cohere cohere2 cohere2_moe ctrl cwm deepseek_v2
deepseek_v3 deepseek_v32 diffllama doge dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon falcon_h1 falcon_mamba
flex_olmo gemma gemma2 gemma3_text gemma3n_text gemma4_text glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt2
gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj granite granite_swa granitemoe granitemoe_swa
granitemoehybrid granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax jais2 jamba jetmoe
lfm2 lfm2_moe llama llama4_text mamba mellum mimo_v2_flash minicpm3 minimax minimax_m2 minimax_m3_vl_text ministral
ministral3 mistral mixtral mpt nanochat nemotron olmo olmo2 olmo3 olmo_hybrid olmoe openai-gpt opt persimmon phi phi3
phimoe qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next recurrent_gemma rwkv seed_oss smollm3
solar_open stablelm starcoder2 vaultgemma xglm youtu zaya
bert cpmant electra inkling_text modernbert-decoder roberta roformer xlm xlstm
""".split()  # noqa: SIM905


def row_of(name: str) -> str:
    """Return the row of one architecture, as the table has it.

    Raises:
        AssertionError: it is computed otherwise than by transformers and PEFT.
    """
    with tempfile.TemporaryDirectory() as there:
        folder = save_tiny(name, Path(there) / "model")
        try:
            found = compare(folder)
        except InputError as error:
            return f"| `{name}` | refused: {_short(error.problems[0].found)} | | |\n"
        packs = "yes" if found.way == "native" else _packs(folder)
        require_equal(found)
    adapted = ", ".join(found.adapted)
    return f"| `{name}` | {found.way} | {packs} | {adapted} |\n"


def require_equal(found: Compared) -> None:
    assert found.logits <= MOST, found
    assert found.losses <= MOST, found
    assert found.weights <= MOST, found
    assert found.loaded <= MOST, found
    assert found.is_isolated, found


def _packs(folder: Path) -> str:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    try:
        decoder = wrap_model(
            model, read_config(folder), device=torch.device("cpu"), weight_format=PLAIN, is_packed=True
        )
        prove_either_way(decoder, where="model")
    except InputError as error:
        return f"no: {_short(error.problems[0].found)}"
    return "yes" if decoder.is_packed else f"sequence by sequence: {_short(decoder.why_one_by_one)}"


def _short(found: str) -> str:
    """Return what was found, without the class that it was found of."""
    found = found.split(", ", 1)[-1].removeprefix("which ").removeprefix("whose ")
    found = found.split(" (relative")[0].split(": another")[0].replace("|", "/")
    return re.sub(r" for sequences of .* alone", " in one stream than alone", found)[:120]


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = []
    for name in names or ARCHITECTURES:
        try:
            rows.append(row_of(name))
        except Exception as error:
            # the others are still tried
            print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
            continue
        print(rows[-1], end="", flush=True)
    if not names:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        head = "| model type | computed | one row on a GPU | linears that adapters adapt |\n|---|---|---|---|\n"
        PAGE.write_text(f"{before}{BEGIN}{head}{''.join(rows)}{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
