"""Blocks under arbitrary sequences of operations, against an oracle of dicts and lists.

The oracle knows a cached block by the tokens up to its end, keeps the free ones in a list, oldest
first, and finds everything by searching.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hasten.core.blocks import BlockManager
from hasten.core.request import Request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.core.simulation import kv_plan, make_request

SIZE = 2
NUM_BLOCKS = 9
NUM_ROWS = 3
MAX_LEN = 12

Name = tuple[int, ...]


@dataclass
class Oracle:
    """One group without a window. A block is its name, or None while it has none."""

    holders: dict[Name, int] = field(default_factory=dict)
    free_named: list[Name] = field(default_factory=list)
    num_empty: int = NUM_BLOCKS - 1
    held: dict[str, list[Name | None]] = field(default_factory=dict)

    def match(self, tokens: list[int]) -> list[Name]:
        names = []
        for end in range(SIZE, len(tokens), SIZE):
            name = tuple(tokens[:end])
            if name not in self.holders and name not in self.free_named:
                break
            names.append(name)
        return names

    def share(self, request_id: str, names: list[Name]) -> None:
        for name in names:
            if name in self.free_named:
                self.free_named.remove(name)
            self.holders[name] = self.holders.get(name, 0) + 1
        self.held[request_id] = list(names)

    def take(self, request_id: str) -> None:
        if self.num_empty:
            self.num_empty -= 1
        else:
            self.free_named.pop(0)
        self.held[request_id].append(None)

    def publish(self, request_id: str, tokens: list[int], begin: int, end: int) -> None:
        """Name the blocks that tokens [begin, end) complete, where no other has their name then.

        A block that got none stays without, even once the other is forgotten.
        """
        held = self.held[request_id]
        for idx in range(begin // SIZE, end // SIZE):
            name = tuple(tokens[: (idx + 1) * SIZE])
            if held[idx] is None and name not in self.holders and name not in self.free_named:
                held[idx] = name
                self.holders[name] = 1

    def release(self, request_id: str) -> None:
        for name in reversed(self.held.pop(request_id)):
            if name is None:
                self.num_empty += 1
            else:
                self.holders[name] -= 1
                if self.holders[name] == 0:
                    del self.holders[name]
                    self.free_named.append(name)

    @property
    def num_free(self) -> int:
        return self.num_empty + len(self.free_named)


class BlockMachine(RuleBasedStateMachine):
    """Admission, growth, publication and release in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(
            kv_plan((None,), NUM_BLOCKS, SIZE),
            num_table_rows=NUM_ROWS,
            max_model_len=MAX_LEN,
            max_chunk=MAX_LEN,
        )
        self.oracle = Oracle()
        self.running: list[Request] = []
        self.num_made = 0

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=MAX_LEN - 2))
    def admit(self, prompt: list[int]) -> None:
        self.num_made += 1
        request = make_request(str(self.num_made), tuple(prompt))
        quote = self.blocks.quote(request)
        names = self.oracle.match(prompt)
        assert quote.num_shared_tokens == len(names) * SIZE
        num_missing = -(-len(prompt) // SIZE) - len(names)
        num_revived = sum(name in self.oracle.free_named for name in names)
        num_promised = sum(
            max(0, -(-r.num_prompt_tokens // SIZE) - len(self.oracle.held[r.request_id]))
            for r in self.running
        )
        fits = num_missing + num_revived <= self.oracle.num_free - num_promised
        assert self.blocks.fits(quote) == (fits and len(self.running) < NUM_ROWS)
        if self.blocks.fits(quote):
            self.blocks.admit(request, quote)
            self.oracle.share(request.request_id, names)
            self.running.append(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num_tokens=st.integers(1, MAX_LEN))
    def compute(self, data: st.DataObject, num_tokens: int) -> None:
        """Part or all of what is missing; one more token comes out at the end."""
        request = data.draw(st.sampled_from(self.running))
        end = min(request.num_computed_tokens + num_tokens, request.num_tokens)
        if not self.blocks.extend(request.request_id, end):
            assert end > request.num_prompt_tokens, "a prompt found no room"
            return
        while len(self.oracle.held[request.request_id]) * SIZE < end:
            self.oracle.take(request.request_id)
        begin, request.num_computed_tokens = request.num_computed_tokens, end
        self.blocks.publish(request)
        self.oracle.publish(request.request_id, request.token_ids, begin, end)
        if end == request.num_tokens < MAX_LEN:
            request.token_ids.append(data.draw(st.integers(0, 1)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num_drafts=st.integers(1, 4))
    def draft(self, data: st.DataObject, num_drafts: int) -> None:
        """Room for drafts is taken and given back; nothing cached is lost."""
        request = data.draw(st.sampled_from(self.running))
        num_slots = len(self.oracle.held[request.request_id]) * SIZE
        if request.num_tokens > num_slots:
            return
        end = min(request.num_tokens + num_drafts, MAX_LEN)
        before = self.blocks.num_free_blocks
        got = self.blocks.extend_for_drafts(request.request_id, end)
        assert request.num_tokens <= got <= end
        self.blocks.check_integrity()
        self.blocks.trim(request.request_id, num_slots)
        assert self.blocks.num_free_blocks == before

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.running.remove(request)
        self.blocks.free(request.request_id)
        self.oracle.release(request.request_id)

    @invariant()
    def blocks_add_up(self) -> None:
        self.blocks.check_integrity()
        assert self.blocks.num_free_blocks == (self.oracle.num_free,)
        for request in self.running:
            held = self.oracle.held[request.request_id]
            assert self.blocks.num_blocks_held(request.request_id) == (len(held),)


TestBlockMachine = BlockMachine.TestCase
TestBlockMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
