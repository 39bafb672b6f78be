from itertools import pairwise

from hasten.api.text.sample_text import SampleDelta, SampleText, StopRules
from hasten.core.messages import PositionLogprobs, TokenOutput
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.fake_engine import EOS_ID, ByteTokenizer

VOCABULARY = ByteTokenizer()


def outputs_of(
    data: bytes, cuts: list[int], *, end: str | None = "length", stop_token_id: int | None = None
) -> list[TokenOutput]:
    """The bytes as tokens, several to a step, the last step with the end."""
    token_ids = list(data) + ([stop_token_id] if stop_token_id is not None else [])
    borders = sorted({0, len(token_ids), *(cut % (len(token_ids) + 1) for cut in cuts)})
    steps = [token_ids[a:b] for a, b in pairwise(borders)]
    return [
        TokenOutput(
            request_id="r",
            token_ids=step,
            logprobs=[PositionLogprobs(-0.5, [], []) for _ in step],
            finish_reason=end if i == len(steps) - 1 else None,
            stop_token_id=stop_token_id if i == len(steps) - 1 else None,
        )
        for i, step in enumerate(steps)
    ]


def run(outputs: list[TokenOutput], rules: StopRules) -> list[SampleDelta]:
    sample = SampleText(VOCABULARY, rules)
    deltas: list[SampleDelta] = []
    for output in outputs:
        deltas.append(sample.push(output))
        if deltas[-1].finish_reason is not None:
            break
    return deltas


def summary(deltas: list[SampleDelta]) -> tuple[object, ...]:
    return (
        "".join(delta.text for delta in deltas),
        [token.token_id for delta in deltas for token in delta.tokens],
        sum(delta.num_tokens for delta in deltas),
        deltas[-1].finish_reason,
        deltas[-1].stop_reason,
    )


@given(
    data=st.binary(min_size=1, max_size=24) | st.text("abé😀", min_size=1).map(str.encode),
    stops=st.lists(st.text("abé😀", min_size=1, max_size=3), max_size=2),
    min_tokens=st.integers(0, 5),
    include=st.booleans(),
    cuts=st.lists(st.integers(0, 1000), max_size=20),
)
def test_steps_of_any_size_show_the_same(
    data: bytes, stops: list[str], min_tokens: int, include: bool, cuts: list[int]
) -> None:
    rules = StopRules(tuple(stops), include_stop=include, min_tokens=min_tokens)
    one_by_one = run(outputs_of(data, list(range(len(data)))), rules)
    assert summary(run(outputs_of(data, cuts), rules)) == summary(one_by_one)


def test_a_stop_string_in_the_middle_of_a_step_ends_the_sample() -> None:
    deltas = run(outputs_of(b"one two three", [5]), StopRules((" tw",)))
    assert summary(deltas) == ("one", [*b"one"], 6, "stop", " tw")
    # The first step held "on" back from nothing, and " t" until it was known.
    assert [delta.text for delta in deltas] == ["one", ""]


def test_records_are_held_back_with_their_text() -> None:
    deltas = run(outputs_of(b"abSTx", [0, 1, 2, 3, 4]), StopRules(("STOP",)))
    assert [delta.text for delta in deltas] == ["a", "b", "", "", "STx"]
    assert [[t.token_id for t in delta.tokens] for delta in deltas[2:]] == [[], [], [*b"STx"]]


def test_eos_is_counted_and_recorded_but_not_shown() -> None:
    rules = StopRules(eos_token_ids=frozenset({EOS_ID}))
    deltas = run(outputs_of(b"ab", [], end="stop", stop_token_id=EOS_ID), rules)
    assert summary(deltas) == ("ab", [*b"ab", EOS_ID], 3, "stop", None)


def test_a_stop_token_is_shown_only_when_asked_for() -> None:
    outputs = outputs_of(b"ab", [], end="stop", stop_token_id=ord("c"))
    assert summary(run(outputs, StopRules()))[0] == "ab"
    shown = run(outputs, StopRules(include_stop=True))
    assert summary(shown) == ("abc", [*b"abc"], 3, "stop", ord("c"))


def test_stop_strings_wait_for_min_tokens() -> None:
    deltas = run(outputs_of(b"xxabxxab", list(range(8))), StopRules(("xx",), min_tokens=2))
    assert summary(deltas) == ("xxab", [*b"xxab"], 6, "stop", "xx")


def test_what_was_held_back_comes_at_the_end() -> None:
    deltas = run(outputs_of(b"a\xc3", [0, 1]), StopRules(("a\ufffdz",)))
    assert summary(deltas)[0] == "a\ufffd"
