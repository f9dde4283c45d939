"""Small tokenizers made on the spot, and chat templates of the kinds found in the wild."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m['role'] }}<|end|>\n\n{{ m['content'] | trim }}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
# no generation prompt at all; the answer is closed by the end-of-sequence token
INSTRUCT = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% elif m['role'] == 'assistant' %} {{ m['content'] }}{{ eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
# the system text is written into the LAST user turn, so it moves as the conversation grows
SYSTEM_MOVES = (
    "{% set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
    "{% set last = messages | selectattr('role', 'equalto', 'user') | list | last %}"
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "[INST] {% if m is sameas last and system %}{{ system }}\n\n{% endif %}{{ m['content'] }}[/INST]"
    "{% elif m['role'] == 'assistant' %} {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
# reasoning of all but the last answer is dropped
DROPS_REASONING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'] if loop.last or m['role'] != 'assistant' else m['content'].split('</think>')[-1] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# the end-of-sequence token closes the whole text, behind the last turn's own end
CLOSES_TEXT = (
    "{% for m in messages %}<|start|>{{ m['role'] }}<|end|>{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>{% else %}{{ eos_token }}{% endif %}"
)
# closes nothing: plain headers
PLAIN_HEADERS = (
    "{% for m in messages %}### {{ m['role'] }}:\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant:\n{% endif %}"
)

_CORPUS = [
    "Question: what is the answer to all of it?\nAnswer:\n the answer is yes and no, 42 or 7.",
    "user assistant",
] * 8


@pytest.fixture
def templates() -> Mapping[str, str]:
    """Chat templates by kind."""
    return {
        "chatml": CHATML,
        "llama_3": LLAMA_3,
        "instruct": INSTRUCT,
        "system_moves": SYSTEM_MOVES,
        "drops_reasoning": DROPS_REASONING,
        "closes_text": CLOSES_TEXT,
        "plain_headers": PLAIN_HEADERS,
    }


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., PreTrainedTokenizerBase]:
    """Return a maker of byte-level BPE tokenizers with the special tokens the templates use."""

    def make(*, chat_template: str | None = None, adds_bos: bool = True, adds_eos: bool = False) -> Any:
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>"]
        trainer = trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator(_CORPUS, trainer)
        single = ("<s> " if adds_bos else "") + "$A" + (" </s>" if adds_eos else "")
        if adds_bos or adds_eos:
            backend.post_processor = processors.TemplateProcessing(
                single=single, special_tokens=[("<s>", 0), ("</s>", 1)]
            )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            bos_token="<s>",
            eos_token="</s>",
            additional_special_tokens=["<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>"],
        )
        tokenizer.chat_template = chat_template
        return tokenizer

    return make


@pytest.fixture(scope="session")
def tokenizer(make_tokenizer: Callable[..., PreTrainedTokenizerBase]) -> PreTrainedTokenizerBase:
    """A byte-level tokenizer that adds BOS and has no chat template."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def gpt2(shared_data: Path) -> PreTrainedTokenizerBase:
    """GPT-2's byte-level BPE: adds nothing."""
    return AutoTokenizer.from_pretrained(shared_data / "tokenizers/gpt2")


@pytest.fixture(scope="session")
def stories(shared_data: Path) -> PreTrainedTokenizerBase:
    """A SentencePiece-like tokenizer: adds BOS and a space mark, falls back to bytes."""
    return AutoTokenizer.from_pretrained(shared_data / "models/stories260K/hf")


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Return a writer of JSON lines files in the test's folder."""

    def write(rows: Sequence[Any], *, name: str = "train.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write
