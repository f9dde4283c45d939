"""The small world of the quickstart: a café where guests order food in plain sentences.

Both the pretraining corpus and the tuning task are drawn from here, so that nothing in this folder comes from
anybody else's text. All randomness is a ``random.Random`` handed in by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

__all__ = ["ITEMS", "NAMES", "NUMBER_WORDS", "Line", "Order", "draw_order", "render_note"]

_NAMES = "Ada Ben Carl Dora Emil Fay Gus Hana Ivo Jane Kai Lena Mia Nils Olga Paul Rita Sam Tara Udo Vera Will Yara Zoe"
_ITEMS = """
    apple bagel bun burger carrot coffee cookie cupcake egg jam juice melon muffin noodle olive orange pancake pear pie
    pizza pretzel salad soup tart tea waffle
"""
_NUMBER_WORDS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty
"""
NAMES = tuple(_NAMES.split())
ITEMS = tuple(_ITEMS.split())
NUMBER_WORDS = tuple(_NUMBER_WORDS.split())
MAX_COUNT = 6
MAX_TABLE = 20

NOTE_TEMPLATES = (
    "{name} at table {table} wants {items}.",
    "{name} would like {items} at table {table}.",
    "Please bring {items} to {name}, who sits at table {table}.",
    "At table {table} sits {name}, who asked for {items}.",
    "We need {items} for {name} at table {table}.",
    "This is {name} at table {table}. I would like {items}.",
    "Can I have {items}? My name is {name}, and this is table {table}.",
    "The guest at table {table} is {name}. The order is {items}.",
)
JOINTS = (" and ", ", and also ", " with ", ", and then ")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of an order: how many (1 to ``MAX_COUNT``) of which item (singular)."""

    count: int
    item: str

    @property
    def noun(self) -> str:
        """The item as it follows its count: "pie" for one, "pies" for more."""
        return self.item if self.count == 1 else self.item + "s"

    @property
    def words(self) -> str:
        """The line as a guest says it: "two pies"."""
        return f"{NUMBER_WORDS[self.count]} {self.noun}"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What one guest at one table wants; ``lines`` are in the order of mention, all items distinct."""

    name: str
    table: int
    lines: tuple[Line, ...]

    @property
    def total(self) -> int:
        """How many things in all."""
        return sum(line.count for line in self.lines)


def draw_order(rng: Random, *, num_lines: int) -> Order:
    """Draw an order of ``num_lines`` distinct items."""
    items = rng.sample(ITEMS, num_lines)
    lines = tuple(Line(count=rng.randint(1, MAX_COUNT), item=item) for item in items)
    return Order(name=rng.choice(NAMES), table=rng.randint(1, MAX_TABLE), lines=lines)


def render_note(order: Order, rng: Random) -> str:
    """Say the order as one of the note sentences, numbers in words, without a line end."""
    joint = rng.choice(JOINTS)
    items = joint.join(line.words for line in order.lines)
    template = rng.choice(NOTE_TEMPLATES)
    return template.format(name=order.name, table=NUMBER_WORDS[order.table], items=items)
