from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from cohort.data.inspection import RenderedExample, Span, format_example, render_examples
from cohort.data.loading import load_dataset
from cohort.data.settings import DatasetSettings

Write = Callable[..., Path]


def examples(tokenizer: PreTrainedTokenizerBase, path: Path, **settings: object) -> list[RenderedExample]:
    config = DatasetSettings(train=path, **settings)  # type: ignore[arg-type]
    data = load_dataset(config, tokenizer=tokenizer, use_cache=False)
    return render_examples(data.train, tokenizer=tokenizer, count=3)


def test_spans_say_what_is_trained(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows = [{"prompt": f"Question {n} é🦙\n", "completion": f"answer {n} 🦙"} for n in range(10)]
    shown = examples(tokenizer, write_jsonl(rows))
    assert len(shown) == 3
    for example in shown:
        number = int(example.source.rpartition(":")[2]) - 1
        assert [(span.text, span.trained, span.special) for span in example.spans] == [
            ("<s>", False, True),
            (f"Question {number} é🦙\n", False, False),
            (f"answer {number} 🦙", True, False),
            ("</s>", True, True),
        ]


def test_sentencepiece_pieces_keep_their_spaces(stories: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows = [{"prompt": f"What is {n}?", "completion": " it is a number"} for n in range(10)]
    for example in examples(stories, write_jsonl(rows)):
        assert "".join(span.text for span in example.spans if span.trained) == " it is a number</s>"


def test_chat(
    make_tokenizer: Callable[..., PreTrainedTokenizerBase], templates: Mapping[str, str], write_jsonl: Write
) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"Q{n}"}, {"role": "assistant", "content": "A"}]} for n in range(10)
    ]
    example = examples(make_tokenizer(chat_template=templates["chatml"]), write_jsonl(rows))[0]
    number = int(example.source.rpartition(":")[2]) - 1
    text = format_example(example)
    assert text.partition("\n")[2] == (f"<|im_start|>user\nQ{number}<|im_end|>\n<|im_start|>assistant\n⟦A<|im_end|>⟧\n")


def test_formats() -> None:
    example = RenderedExample(
        source="f:3",
        spans=(
            Span(text="P\x1b[2J", trained=False, special=False, num_tokens=2),
            Span(text="C", trained=True, special=False, num_tokens=1),
            Span(text="</s>", trained=True, special=True, num_tokens=1),
        ),
    )
    # an escape sequence in the data must not reach the terminal
    assert format_example(example) == "f:3: 4 tokens, 2 trained\nP\\x1b[2J⟦C</s>⟧"
    coloured = format_example(example, color=True)
    assert "\x1b[1;32mC\x1b[0m" in coloured
    assert "\x1b[2J" not in coloured
