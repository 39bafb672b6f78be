"""What is learnt about outputs, and who is let in for it."""

from __future__ import annotations

import numpy as np
import pytest
from hasten.core.blocks import BlockManager
from hasten.core.forecast import Forecast, OutputLengths
from hasten.core.request import Request
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.simulation import kv_plan, make_request

SIZE = 4


def survival(lengths: OutputLengths, age: int, time: int) -> float:
    """Of a single output that runs."""
    return float(lengths.survival(np.array([age]), np.array([time]))[0, 0])


def test_nothing_is_known_at_first() -> None:
    lengths = OutputLengths()
    assert survival(lengths, 0, 100) == pytest.approx(np.exp(-100 / 4096))
    assert survival(lengths, 0, 10_000) == pytest.approx(np.exp(-10_000 / 4096))


def test_outputs_are_expected_to_end_where_others_did() -> None:
    lengths = OutputLengths()
    for _ in range(100):
        lengths.note_end(100, was_cut=False)
    assert survival(lengths, 0, 60) > 0.9
    assert survival(lengths, 0, 128) < 0.25
    assert survival(lengths, 0, 64) > 3 * survival(lengths, 0, 128)
    assert survival(lengths, 100, 100) > 0.1, "one that got so far is not like those"
    assert survival(lengths, 200, 500) > 0.8


def test_what_was_cut_tells_only_how_far_it_got() -> None:
    lengths = OutputLengths()
    for _ in range(100):
        lengths.note_end(100, was_cut=True)
    assert survival(lengths, 0, 90) > 0.99
    assert survival(lengths, 0, 4096 + 100) == pytest.approx(np.exp(-1), abs=0.02)


def test_what_runs_on_is_evidence_too() -> None:
    """The first to end are the short ones: alone they would make all outputs look short."""
    lengths = OutputLengths()
    for _ in range(10):
        lengths.note_end(20, was_cut=False)
    others = np.full(30, 40)
    alone = survival(lengths, 0, 32)
    in_company = lengths.survival(np.append(others, 0), np.array([32]))[0, -1]
    assert alone < 0.4
    assert in_company > 0.6


def test_old_evidence_fades() -> None:
    lengths = OutputLengths()
    for output_len in (20,) * 200 + (300,) * 400:
        lengths.note_end(output_len, was_cut=False)
    assert survival(lengths, 0, 200) > 0.8


@given(
    ends=st.lists(st.tuples(st.integers(1, 3000), st.booleans()), max_size=30),
    ages=st.lists(st.integers(0, 3000), min_size=1, max_size=8),
)
def test_survival_is_a_probability_that_falls(
    ends: list[tuple[int, bool]], ages: list[int]
) -> None:
    lengths = OutputLengths()
    for output_len, was_cut in ends:
        lengths.note_end(output_len, was_cut=was_cut)
    chance = lengths.survival(np.array(ages), np.array([0, 1, 10, 100, 5000]))
    assert (chance[0] == 1).all()
    assert (np.diff(chance, axis=0) <= 0).all()
    assert (chance >= 0).all()


class Memory:
    """A forecast over blocks of 4 tokens, and who has been let in."""

    def __init__(self, num_usable: int, window: int | None = None) -> None:
        self.blocks = BlockManager(
            kv_plan((window,), num_usable + 1, SIZE),
            num_table_rows=64,
            max_model_len=10_000,
            max_chunk=16,
        )
        self.forecast = Forecast(self.blocks)
        self.running: list[Request] = []

    def lets_in(self, request: Request) -> bool:
        quote = self.blocks.quote(request)
        if not (self.blocks.fits(quote) and self.forecast.fits(self.running, request, quote)):
            return False
        self.blocks.admit(request, quote)
        self.running.append(request)
        return True

    def num_let_in(self, prompt_len: int, max_tokens: int) -> int:
        """How many requests of a kind come in, one after another."""
        count = 0
        while self.lets_in(make_request(f"r{count}", (count,) * prompt_len, max_tokens, count)):
            count += 1
        return count


def test_short_allowances_count_in_full() -> None:
    assert Memory(40).num_let_in(prompt_len=4, max_tokens=13) == 10


def test_long_allowances_do_not_keep_a_fresh_server_empty() -> None:
    assert Memory(2500).num_let_in(prompt_len=4, max_tokens=9000) > 2 * (2500 // 2251)


def test_experience_lets_more_in() -> None:
    memory = Memory(210)
    for idx in range(100):
        ended = make_request("ended", (1,), 400)
        ended.token_ids += [2] * (20 + idx % 20)
        memory.forecast.note_end(ended)
    assert Memory(210).num_let_in(4, 400) == 2
    assert memory.num_let_in(4, 400) > 8


def test_those_about_to_end_make_room() -> None:
    """At the fullest moment one has ended: 5 and 7 blocks fit into 9."""
    memory = Memory(9)
    old = make_request("old", (1,) * 4, max_tokens=17)
    old.token_ids += [3] * 12
    assert memory.lets_in(old)
    assert memory.lets_in(make_request("new", (2,) * 4, 25, 1))


def test_one_that_is_alone_always_comes_in() -> None:
    for num_tokens in (1, 3, 4, 5, 150, 199):
        memory = Memory(50)
        for _ in range(40):  # a coin's toss at half of its length: the largest deviation
            ended = make_request("ended", (1,), 400)
            ended.token_ids += [2] * 60
            memory.forecast.note_end(ended)
        assert memory.lets_in(make_request("a", (1,) * num_tokens, 201 - num_tokens))


def test_a_window_is_all_that_grows() -> None:
    """A window of 8 tokens spans at most 3 blocks, however long the output may get."""
    assert Memory(30, window=8).num_let_in(prompt_len=4, max_tokens=5000) == 10


def test_samples_share_their_prompt_to_the_end() -> None:
    """The first one's end frees none of the prompt's 10 blocks, so two more do not fit."""
    memory = Memory(16)
    samples = [make_request("a", tuple(range(40)), 9, n=3, sample_idx=i) for i in range(3)]
    assert memory.lets_in(samples[0])
    assert memory.blocks.extend(samples[0].request_id, 40)
    samples[0].num_computed_tokens = 40
    quotes = [memory.blocks.quote(sample, samples[0]) for sample in samples[1:]]
    memory.blocks.admit(samples[1], quotes[0])
    memory.running.append(samples[1])
    assert memory.forecast.fits(memory.running[:1], samples[1], quotes[0])
    assert not memory.forecast.fits(memory.running, samples[2], quotes[1])
