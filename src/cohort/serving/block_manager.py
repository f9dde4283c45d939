"""Who owns which block of keys and values, and which blocks still hold the beginning of a prompt that may come again.

No tensors here: block numbers, counts of owners and hashes.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence

import numpy as np

from cohort.serving.kv_blocks import BLOCK_ROWS

__all__ = ["BlockManager", "prompt_hashes"]


def prompt_hashes(tokens: Sequence[int], *, adapter: Hashable) -> tuple[bytes, ...]:
    """Return a hash for each full block of a prompt that another prompt may share.

    A hash covers all tokens up to the end of its block, and the adapter with its version: keys and values depend on
    both. The last token is always computed, because its logits are needed, so a block that ends with it is left out.
    """
    parent = hashlib.blake2b(repr(adapter).encode(), digest_size=16).digest()
    hashes = []
    for start in range(0, len(tokens) - BLOCK_ROWS, BLOCK_ROWS):
        block = np.asarray(tokens[start : start + BLOCK_ROWS], dtype=np.int64).tobytes()
        parent = hashlib.blake2b(parent + block, digest_size=16).digest()
        hashes.append(parent)
    return tuple(hashes)


class BlockManager:
    """Hands out blocks 1 to ``num_blocks``. A block whose content is known by hash is given away last.

    Attributes:
        num_hits: Blocks of prompts that did not have to be computed.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = deque(range(1, num_blocks + 1))
        self._owners: dict[int, int] = {}
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        # blocks of no owner whose content may be asked for again, the least recently used first
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.num_blocks = num_blocks
        self.num_hits = 0

    @property
    def num_free(self) -> int:
        """Blocks of no owner, those with known content included."""
        return len(self._free) + len(self._idle)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def take(self, count: int) -> list[int]:
        """Return blocks with one owner each.

        Raises:
            ValueError: fewer are free.
        """
        if count > self.num_free:
            raise ValueError(f"{count} blocks were asked for and {self.num_free} are free: check num_free first")
        blocks = []
        for _ in range(count):
            if self._free:
                block = self._free.popleft()
            else:
                block, _ = self._idle.popitem(last=False)
                del self._block_of[self._hash_of.pop(block)]
            self._owners[block] = 1
            blocks.append(block)
        return blocks

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the blocks that hold the beginning of a prompt, as far as they are known."""
        found = []
        for each in hashes:
            block = self._block_of.get(each)
            if block is None:
                break
            found.append(block)
        return found

    def num_free_without(self, blocks: Sequence[int]) -> int:
        """Return how many blocks are free once ``blocks`` have an owner."""
        return self.num_free - sum(block in self._idle for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Give blocks that :meth:`find` returned one more owner."""
        for block in blocks:
            self._idle.pop(block, None)
            self._owners[block] = self._owners.get(block, 0) + 1
        self.num_hits += len(blocks)

    def remember(self, block: int, content: bytes) -> None:
        """Let later prompts find an owned block; the first block of some content is the one that is found."""
        if content not in self._block_of and block not in self._hash_of:
            self._block_of[content] = block
            self._hash_of[block] = content

    def give_back(self, blocks: Sequence[int]) -> None:
        """Take one owner from each block."""
        # the end of a prompt is asked for less often than its beginning, so it goes first
        for block in reversed(blocks):
            self._owners[block] -= 1
            if self._owners[block] == 0:
                del self._owners[block]
                if block in self._hash_of:
                    self._idle[block] = None
                else:
                    self._free.append(block)
