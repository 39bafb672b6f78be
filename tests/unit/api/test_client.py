"""The engine process and its client, over an engine without a model."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from hasten.api.client import (
    EngineClient,
    EngineDeadError,
    EngineStartError,
    RequestAbortedError,
    RequestRefusedError,
)
from hasten.core.messages import AddRequest
from hasten.core.options import EngineOptions
from hasten.core.params import GenerationParams

from tests.helpers.fake_engine import DIE_TEXT, MAX_MODEL_LEN

FACTORY = "tests.helpers.fake_engine:"
Scenario = Callable[[EngineClient], Coroutine[object, object, None]]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The child process must find the fake; its socket folder is made where it can be looked at."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@asynccontextmanager
async def running(engine: str) -> AsyncIterator[EngineClient]:
    async with await EngineClient.start(EngineOptions(), FACTORY + engine) as client:
        yield client


def play(scenario: Scenario, engine: str = "build_slow") -> None:
    async def run() -> None:
        async with running(engine) as client:
            await asyncio.wait_for(scenario(client), 20)

    asyncio.run(run())


def request(
    request_id: str = "r", text: str = "abc", max_tokens: int = 5, n: int = 1
) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=list(text.encode()),
        params=GenerationParams(max_tokens=max_tokens, seed=1, n=n),
    )


async def tokens_of(client: EngineClient, add: AddRequest) -> list[int]:
    return [token async for output in client.generate(add) for token in output.token_ids]


async def wait_running(client: EngineClient, count: int) -> None:
    for _ in range(500):
        if (await client.stats()).num_running == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"the engine never had {count} running samples")


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_many_requests_at_once_each_get_their_own_tokens() -> None:
    async def scenario(client: EngineClient) -> None:
        answers = await asyncio.gather(
            *(tokens_of(client, request(f"r{i}", chr(97 + i), 4 + i)) for i in range(20))
        )
        assert answers == [[97 + i] * (4 + i) for i in range(20)]
        assert client.num_open_requests == 0

    play(scenario, "build_fake")


def test_samples_of_a_request_come_under_one_id() -> None:
    async def scenario(client: EngineClient) -> None:
        outputs = [output async for output in client.generate(request(n=3, max_tokens=2))]
        assert sorted(output.sample_idx for output in outputs) == [0, 0, 1, 1, 2, 2]

    play(scenario, "build_fake")


def test_leaving_early_aborts() -> None:
    async def scenario(client: EngineClient) -> None:
        async with aclosing(client.generate(request(max_tokens=1000))) as outputs:
            async for _ in outputs:
                break
        await wait_running(client, 0)

    play(scenario)


def test_cancelling_aborts() -> None:
    async def scenario(client: EngineClient) -> None:
        task = asyncio.create_task(tokens_of(client, request(max_tokens=1000)))
        await wait_running(client, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_running(client, 0)

    play(scenario)


def test_ending_one_sample_leaves_the_others() -> None:
    async def scenario(client: EngineClient) -> None:
        seen = {0: 0, 1: 0}
        async with aclosing(client.generate(request(n=2, max_tokens=60))) as outputs:
            async for output in outputs:
                seen[output.sample_idx] += 1
                if seen == {0: 1, 1: 1}:
                    client.end_sample("r", 0)
                if seen[1] == 60:
                    break
        assert seen[0] < 60

    play(scenario)


def test_a_refusal_names_the_field() -> None:
    async def scenario(client: EngineClient) -> None:
        with pytest.raises(RequestRefusedError, match=str(MAX_MODEL_LEN)) as caught:
            await tokens_of(client, request(max_tokens=MAX_MODEL_LEN))
        assert caught.value.field == "max_tokens"
        assert client.num_open_requests == 0

    play(scenario)


def test_a_killed_engine_fails_open_requests_at_once() -> None:
    async def scenario(client: EngineClient) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(tokens_of(client, request(max_tokens=1000)))
        await asyncio.sleep(0.1)
        assert client.failure is None
        os.kill(client.pid, signal.SIGKILL)
        begin_s = loop.time()
        with pytest.raises(EngineDeadError, match="signal 9"):
            await task
        assert loop.time() - begin_s < 5
        assert client.failure is not None
        with pytest.raises(EngineDeadError):
            await tokens_of(client, request("late"))
        with pytest.raises(EngineDeadError):
            await client.stats()
        await client.wait_dead()

    play(scenario)


def test_an_engine_that_raises_says_what(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario(client: EngineClient) -> None:
        with pytest.raises(EngineDeadError, match="RuntimeError: told to die"):
            await tokens_of(client, request(text=DIE_TEXT))
        await client.wait_dead()

    play(scenario)
    assert "Traceback" in capfd.readouterr().err


def test_a_model_that_does_not_load_gives_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with running("build_broken"):
            pass

    with pytest.raises(
        EngineStartError, match=r"^model.gguf: tensor 'output.weight' is truncated$"
    ):
        asyncio.run(run())
    assert "Traceback" not in capfd.readouterr().err


def test_an_engine_that_hangs_counts_as_dead() -> None:
    async def scenario() -> None:
        client = await EngineClient.start(
            EngineOptions(), FACTORY + "build_slow", stall_timeout_s=0.3
        )
        async with client:
            os.kill(client.pid, signal.SIGSTOP)
            await asyncio.sleep(0.6)
            assert client.failure is None  # it owes nobody anything
            with pytest.raises(EngineDeadError, match="said nothing"):
                await client.stats()
            await client.wait_dead()

    asyncio.run(scenario())


def test_abort_all_tells_the_reason() -> None:
    async def scenario(client: EngineClient) -> None:
        task = asyncio.create_task(tokens_of(client, request(max_tokens=1000)))
        await asyncio.sleep(0.1)
        client.abort_all("the server is shutting down")
        with pytest.raises(RequestAbortedError, match="shutting down"):
            await task
        await wait_running(client, 0)

    play(scenario)


def test_closing_leaves_nothing_behind(tmp_path: Path) -> None:
    pids: list[int] = []

    async def scenario(client: EngineClient) -> None:
        pids.append(client.pid)
        assert names_in(tmp_path)
        await tokens_of(client, request())

    play(scenario)
    assert not psutil.pid_exists(pids[0])
    assert not names_in(tmp_path)


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.01, 0.2])
def test_a_start_can_be_cancelled(tmp_path: Path, delay_s: float) -> None:
    before = psutil.Process().children()

    async def run() -> None:
        factory = FACTORY + "build_endless"
        starting = asyncio.create_task(EngineClient.start(EngineOptions(), factory))
        await asyncio.sleep(delay_s)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(run())
    assert not names_in(tmp_path)
    assert psutil.Process().children() == before


def test_the_engine_ends_with_its_parent(tmp_path: Path) -> None:
    """The parent dies without a chance to say so; the child is busy meanwhile."""

    async def scenario(client: EngineClient) -> None:
        process = psutil.Process(client.pid)
        client._send(request(max_tokens=MAX_MODEL_LEN - 100))
        assert client._process.stdin is not None
        client._process.stdin.close()
        await asyncio.to_thread(process.wait, 5)
        assert not names_in(tmp_path)

    play(scenario)


def test_an_engine_that_is_not_understood_fails_whoever_waits() -> None:
    async def scenario(client: EngineClient) -> None:
        client._decoder = msgspec.msgpack.Decoder(type=int)  # the wrong one
        with pytest.raises(EngineDeadError, match="is not understood"):
            await tokens_of(client, request(max_tokens=50))

    play(scenario)
