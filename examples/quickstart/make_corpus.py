"""Write the pretraining corpus of the quickstart's base model: café notes, questions about them, records, small sums.

    python examples/quickstart/make_corpus.py --out DIR [--documents 220000] [--seed 0]

writes ``DIR/corpus.jsonl``, one {"text": ...} a line. The same seed gives the same bytes on every machine. The kitchen
ticket of the tuning task (make_task.py) is deliberately in none of the documents: every skill it needs is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from cafe import ITEMS, NAMES, NUMBER_WORDS, Order, draw_order, render_note

__all__ = ["documents", "write_corpus"]


def _number(value: int, rng: Random) -> str:
    return rng.choice((str(value), NUMBER_WORDS[value]))


def _count_document(rng: Random) -> str:
    """Counting and the two spellings of a number."""
    start = rng.randint(0, 14)
    values = range(start, start + rng.randint(4, 6))
    style = rng.randrange(3)
    if style == 0:
        return " ".join(NUMBER_WORDS[value] for value in values) + "\n"
    if style == 1:
        return " ".join(str(value) for value in values) + "\n"
    return "".join(f"{NUMBER_WORDS[value]} is {value}.\n" for value in rng.sample(range(21), 4))


def _sum_document(rng: Random) -> str:
    """Small sums, in digits or in words."""
    lines = []
    for _ in range(4):
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        if rng.random() < 0.7:
            lines.append(f"{a} + {b} = {a + b}\n")
        else:
            lines.append(f"{NUMBER_WORDS[a]} and {NUMBER_WORDS[b]} make {NUMBER_WORDS[a + b]}.\n")
    return "".join(lines)


def _plural_document(rng: Random) -> str:
    """One of a thing and many of it."""
    lines = []
    for item in rng.sample(ITEMS, 3):
        count = rng.randint(2, 9)
        lines.append(
            rng.choice(
                (
                    f"one {item}, {NUMBER_WORDS[count]} {item}s.\n",
                    f"{count} {item}s, 1 {item}.\n",
                    f"Many {item}s, but only one {item}.\n",
                )
            )
        )
    return "".join(lines)


def _echo_document(rng: Random) -> str:
    """A handful of words said twice: the shortest lesson in copying."""
    words = [rng.choice((*ITEMS, *NAMES, *NUMBER_WORDS)) for _ in range(rng.randint(3, 8))]
    line = "say " + " ".join(words) + "\n"
    return line * rng.randint(2, 3)


def _questions(order: Order, rng: Random) -> list[str]:
    """Return every question that the order answers, with its answer, as lines in random order."""
    asked = rng.choice(order.lines)
    other = rng.choice([item for item in ITEMS if all(item != line.item for line in order.lines)])
    lines = [
        f"Who is it for? {order.name}.\n",
        f"Which table? {_number(order.table, rng)}.\n",
        f"Table in digits: {order.table}\n",
        f"How many {asked.item}s? {_number(asked.count, rng)}.\n",
        f"How many in all? {order.total}.\n",
        f"What do we need? {', '.join(line.item for line in order.lines)}.\n",
        f"Any {asked.item}s? Yes, {asked.count}.\n",
        f"Any {other}s? No.\n",
        f"Sum: {' + '.join(str(line.count) for line in order.lines)} = {order.total}\n",
        f"Count: {' and '.join(f'{line.count} {line.noun}' for line in order.lines)}.\n",
    ]
    rng.shuffle(lines)
    return lines


def _question_document(rng: Random) -> str:
    order = draw_order(rng, num_lines=rng.choice((1, 2, 2, 2, 3)))
    return render_note(order, rng) + "\n" + "".join(_questions(order, rng)[: rng.randint(4, 8)])


def _record_document(rng: Random) -> str:
    """A note, then the same order as one or more of several kinds of record."""
    order = draw_order(rng, num_lines=rng.choice((1, 2, 2, 2, 3)))
    lines = order.lines
    records = (
        f"name: {order.name}\ntable: {order.table}\n" + "".join(f"{line.item}: {line.count}\n" for line in lines),
        f"{order.name} [{order.table}] " + " ".join(f"{line.item}={line.count}" for line in lines) + "\n",
        ", ".join(f"{line.item} {line.count}" for line in lines) + f" ({order.name}, {order.table})\n",
        f"{order.name}: " + ", ".join(f"{line.count} {line.noun}" for line in lines) + f"; table {order.table}\n",
        f"Bring {' and '.join(line.words for line in lines)} to {NUMBER_WORDS[order.table]}.\n",
    )
    return render_note(order, rng) + "\n" + "".join(rng.sample(records, rng.randint(1, 3)))


def _two_guests_document(rng: Random) -> str:
    """Two notes, then questions that must be answered from the right one."""
    first, second = (draw_order(rng, num_lines=1) for _ in range(2))
    while second.name == first.name:
        second = draw_order(rng, num_lines=1)
    text = render_note(first, rng) + " " + render_note(second, rng) + "\n"
    for order in rng.sample((first, second), 2):
        line = order.lines[0]
        text += rng.choice(
            (
                f"What does {order.name} want? {line.words}.\n",
                f"Where is {order.name}? Table {order.table}.\n",
                f"How many for {order.name}? {line.count}.\n",
            )
        )
    return text


def _small_talk_document(rng: Random) -> str:
    """Plain sentences, so that a note is not the only thing a text can begin with."""
    a, b = rng.sample(NAMES, 2)
    item, other = rng.sample(ITEMS, 2)
    return rng.choice(
        (
            f"{a} likes {item}s, but {b} likes {other}s.\n{b} gave {a} one {item}.\n",
            f"{a} and {b} met at the café. They shared a {item}.\n",
            f"Today the {item} is fresh, says {a}. Then I want a {item}, says {b}.\n",
            f"{a} had two {item}s and lost one. Now {a} has one {item}.\n",
        )
    )


_KINDS: tuple[tuple[Callable[[Random], str], int], ...] = (
    (_echo_document, 4),
    (_question_document, 8),
    (_record_document, 8),
    (_two_guests_document, 2),
    (_count_document, 1),
    (_sum_document, 2),
    (_plural_document, 1),
    (_small_talk_document, 1),
)


def documents(count: int, *, seed: int) -> Iterator[str]:
    """Yield ``count`` documents, each ending in a line end; a pure function of ``count`` and ``seed``."""
    rng = Random(f"corpus {seed}")
    makers = [maker for maker, _ in _KINDS]
    weights = [weight for _, weight in _KINDS]
    for _ in range(count):
        yield rng.choices(makers, weights)[0](rng)


def write_corpus(folder: Path, *, count: int, seed: int) -> Path:
    """Write ``folder/corpus.jsonl`` and return its path; the folder is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "corpus.jsonl"
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for text in documents(count, seed=seed):
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for corpus.jsonl")
    parser.add_argument("--documents", type=int, default=220_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(write_corpus(arguments.out, count=arguments.documents, seed=arguments.seed))


if __name__ == "__main__":
    main()
