"""The gRPC front of a server that answers with its prompt, through grpcio and reflection."""

from __future__ import annotations

import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from hasten.api.grpc import hasten_pb2 as pb
from hasten.api.grpc.hasten_pb2_grpc import HastenStub

from tests.helpers.grpc_calls import error_of, grpc_address, joined, text_prompt
from tests.helpers.server_process import FAKE, ServerProcess, server_process

FLAGS = ("--port=0", "--grpc-port=0")
KEY = "secret"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """20 ms for each token, so that requests can be met while they run."""
    folder = tmp_path_factory.mktemp("grpc")
    with server_process(folder, ("build_slow", *FLAGS), start=FAKE) as process:
        assert process.url, process.log
        yield process


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(grpc_address(server)) as made:
        yield made


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> Any:
    return HastenStub(channel)


def wait_idle(stub: Any) -> None:
    """Until the engine holds nothing: all blocks are back."""
    deadline = time.monotonic() + 30
    while (capacity := stub.Capacity(pb.CapacityRequest())).num_running:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert capacity.num_free_blocks == capacity.num_total_blocks


def test_a_text_comes_in_pieces_with_its_counts(stub: Any) -> None:
    request = pb.GenerateRequest(
        prompt=text_prompt("grün"), sampling=pb.Sampling(max_tokens=6, seed=7, logprobs=1)
    )
    messages = list(stub.Generate(request))
    assert len(messages) > 2
    # The mark that texts begin with has no bytes.
    assert joined(messages) == {0: "grün"}
    last = messages[-1]
    assert last.finish_reason == "length"
    assert (last.num_prompt_tokens, last.num_cached_tokens, last.num_generated_tokens) == (6, 3, 6)
    assert last.seed == 7
    assert last.request_id.startswith("grpc-")
    tokens = [token for message in messages for token in message.token_ids]
    assert tokens == [257, *"grün".encode()]
    logprobs = [entry for message in messages for entry in message.logprobs]
    assert len(logprobs) == len(tokens)
    assert list(logprobs[1].top_ids) == [ord("g")]


def test_a_beam_search_is_taken(stub: Any) -> None:
    sampling = pb.Sampling(
        max_tokens=3,
        n=2,
        use_beam_search=True,
        best_of=3,
        length_penalty=0.5,
        early_stopping="true",
    )
    prompt = pb.Prompt(token_ids=pb.TokenIds(ids=b"abc"))
    messages = list(stub.Generate(pb.GenerateRequest(prompt=prompt, sampling=sampling)))
    assert joined(messages) == {0: "abc", 1: "abc"}


def test_token_ids_are_taken_as_they_are(stub: Any) -> None:
    prompt = pb.Prompt(token_ids=pb.TokenIds(ids=b"abc"))
    request = pb.GenerateRequest(prompt=prompt, sampling=pb.Sampling(max_tokens=4, n=2))
    assert joined(list(stub.Generate(request))) == {0: "abca", 1: "abca"}


def test_messages_are_rendered(stub: Any) -> None:
    chat = pb.Messages(messages=[pb.Message(role="user", content="Hi")])
    request = pb.GenerateRequest(
        prompt=pb.Prompt(chat=chat), sampling=pb.Sampling(max_tokens=20, stop=["<assist"])
    )
    (text,) = joined(messages := list(stub.Generate(request))).values()
    assert text == "<user>Hi\n"
    assert messages[-1].finish_reason == "stop"
    assert messages[-1].stop_text == "<assist"


def test_a_prompt_is_scored(stub: Any) -> None:
    prompt = pb.Prompt(token_ids=pb.TokenIds(ids=b"abc"))
    answer = stub.Score(pb.ScoreRequest(prompt=prompt, num_top=1))
    assert list(answer.token_ids) == list(b"abc")
    assert [entry.logprob for entry in answer.logprobs] == [-0.5, -0.5]
    assert [list(entry.top_ids) for entry in answer.logprobs] == [[ord("b")], [ord("c")]]
    wait_idle(stub)


@pytest.mark.parametrize(
    ("request_fields", "status", "param"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        (
            {"prompt": pb.Prompt(token_ids=pb.TokenIds())},
            grpc.StatusCode.INVALID_ARGUMENT,
            "prompt",
        ),
        (
            {"prompt": pb.Prompt(token_ids=pb.TokenIds(ids=[999]))},
            grpc.StatusCode.INVALID_ARGUMENT,
            "prompt",
        ),
        (
            {"prompt": text_prompt("x"), "sampling": pb.Sampling(temperature=3)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "sampling.temperature",
        ),
        (
            {"prompt": text_prompt("x"), "sampling": pb.Sampling(max_tokens=5000)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "sampling.max_tokens",
        ),
        (
            {
                "prompt": text_prompt("x"),
                "sampling": pb.Sampling(use_beam_search=True, early_stopping="soon"),
            },
            grpc.StatusCode.INVALID_ARGUMENT,
            "sampling.early_stopping",
        ),
        (
            {"prompt": text_prompt("x"), "sampling": pb.Sampling(use_beam_search=True, n=11)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "sampling.n",
        ),
        ({"prompt": text_prompt("x"), "model": "other"}, grpc.StatusCode.NOT_FOUND, "model"),
        (
            {"prompt": text_prompt("x"), "request_id": "x" * 257},
            grpc.StatusCode.INVALID_ARGUMENT,
            "request_id",
        ),
        ({"prompt": text_prompt("x"), "priority": 3}, grpc.StatusCode.INVALID_ARGUMENT, "priority"),
        (
            {"prompt": pb.Prompt(chat=pb.Messages(messages=[pb.Message(role="robot")]))},
            grpc.StatusCode.INVALID_ARGUMENT,
            "prompt.chat.messages[0].role",
        ),
        (
            {"prompt": pb.Prompt(chat=pb.Messages())},
            grpc.StatusCode.INVALID_ARGUMENT,
            "prompt.chat.messages",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    stub: Any, request_fields: dict[str, Any], status: grpc.StatusCode, param: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Generate(pb.GenerateRequest(**request_fields)))
    assert error_of(caught.value)[:2] == (status, param)


def test_a_field_of_another_protocol_is_refused(channel: grpc.Channel) -> None:
    call = channel.unary_stream("/hasten.v1.Hasten/Generate")
    # Field 2000 of the sampling parameters.
    unknown = (
        pb.GenerateRequest(prompt=text_prompt("x")).SerializeToString() + b"\x22\x03\x80\x7d\x01"
    )
    with pytest.raises(grpc.RpcError) as caught:
        list(call(unknown))
    assert caught.value.details() == "hasten.v1.Sampling has no field number 2000"


def long_request(request_id: str = "") -> pb.GenerateRequest:
    """One that runs for a minute, unless it is ended."""
    return pb.GenerateRequest(
        request_id=request_id, prompt=text_prompt("x"), sampling=pb.Sampling(max_tokens=3000)
    )


def test_a_cancelled_call_ends_its_request(stub: Any) -> None:
    call = stub.Generate(long_request())
    next(call)
    assert stub.Capacity(pb.CapacityRequest()).num_running == 1
    call.cancel()
    wait_idle(stub)


def test_a_deadline_ends_its_request(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Generate(long_request(), timeout=0.5))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_idle(stub)


def test_abort_ends_a_request_by_its_id(stub: Any) -> None:
    call = stub.Generate(long_request("mine"))
    assert next(call).request_id == "mine"
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Generate(long_request("mine")))
    assert error_of(caught.value)[:2] == (grpc.StatusCode.ALREADY_EXISTS, "request_id")
    assert stub.Abort(pb.AbortRequest(request_id="mine")).was_open
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() == grpc.StatusCode.ABORTED
    assert not stub.Abort(pb.AbortRequest(request_id="mine")).was_open
    wait_idle(stub)


def begun(stub: Any, request: pb.GenerateRequest) -> tuple[Any, pb.GenerateResponse]:
    """A call and its first message, once the server has heard that its id is free."""
    call = stub.Generate(request)
    try:
        return call, next(call)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
            raise
    return begun(stub, request)


def test_an_id_used_again_gets_nothing_of_the_request_before(stub: Any) -> None:
    for letter in "abcdefgh":
        request = pb.GenerateRequest(
            request_id="again", prompt=text_prompt(4 * letter), sampling=pb.Sampling(max_tokens=4)
        )
        call, first = begun(stub, request)
        assert first.request_id == "again"
        assert set(first.text) <= {letter}
        call.cancel()


def test_capacity(stub: Any) -> None:
    wait_idle(stub)
    answer = stub.Capacity(pb.CapacityRequest())
    assert (answer.model, answer.max_model_len) == ("echo", 4096)
    assert (list(answer.num_free_blocks), answer.num_waiting) == ([100], 0)


def test_health(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", "hasten.v1.Hasten"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watched = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
    watched.cancel()


def test_a_client_needs_reflection_alone(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "hasten.v1.Hasten" in database.get_services()
    service = DescriptorPool(database).FindServiceByName("hasten.v1.Hasten")
    method = service.FindMethodByName("Generate")
    asked, answered = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    call = channel.unary_stream(
        "/hasten.v1.Hasten/Generate", asked.SerializeToString, answered.FromString
    )
    request = asked(prompt={"text": "ok"}, sampling={"max_tokens": 3})
    assert "".join(message.text for message in call(request)) == "ok"


def test_a_port_in_use_is_said_at_once(server: ServerProcess, tmp_path: Path) -> None:
    port = grpc_address(server).rpartition(":")[2]
    flags = ("build_fake", "--port=0", f"--grpc-port={port}")
    with server_process(tmp_path, flags, start=FAKE) as process:
        assert process.process.wait(60) == 1
    assert any(f"cannot listen on 127.0.0.1:{port} for gRPC" in line for line in process.log)


def test_draining_lets_open_requests_finish(tmp_path: Path) -> None:
    with server_process(tmp_path, ("build_slow", *FLAGS), start=FAKE) as process:
        with grpc.insecure_channel(grpc_address(process)) as channel:
            stub: Any = HastenStub(channel)
            request = pb.GenerateRequest(
                prompt=pb.Prompt(token_ids=pb.TokenIds(ids=b"a")),
                sampling=pb.Sampling(max_tokens=200),
            )
            call = stub.Generate(request)
            begun = next(call)
            assert stub.Drain(pb.DrainRequest()).num_open_requests == 1
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.Generate(request))
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert joined([begun, *call]) == {0: "a" * 200}
        assert process.process.wait(60) == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The files of a certificate for localhost, signed by itself, and of its key."""
    openssl = which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate with")
    folder = tmp_path_factory.mktemp("certificate")
    chain, key = folder / "chain.pem", folder / "key.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(key), "-out", str(chain)),
        ],
        check=True,
        capture_output=True,
    )
    return chain, key


def test_key_and_certificate(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    flags = ("build_fake", *FLAGS, f"--api-key={KEY}", f"--ssl-certfile={chain}")
    with server_process(tmp_path, (*flags, f"--ssl-keyfile={key}"), start=FAKE) as process:
        assert process.url.startswith("https://"), process.log
        port = grpc_address(process).rpartition(":")[2]
        trusted = grpc.ssl_channel_credentials(chain.read_bytes())
        with grpc.secure_channel(f"localhost:{port}", trusted) as channel:
            stub: Any = HastenStub(channel)
            request = pb.GenerateRequest(
                prompt=text_prompt("ok"), sampling=pb.Sampling(max_tokens=3)
            )
            authorised = (("authorization", f"Bearer {KEY}"),)
            assert joined(list(stub.Generate(request, metadata=authorised))) == {0: "ok"}
            for metadata in ((), (("authorization", "Bearer wrong"),)):
                with pytest.raises(grpc.RpcError) as caught:
                    list(stub.Generate(request, metadata=metadata))
                assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            # A client that keeps its connection, and is not listening, holds up nothing.
            with httpx.Client(verify=ssl.create_default_context(cafile=chain)) as idle:
                url = process.url.replace("127.0.0.1", "localhost")
                assert idle.get(f"{url}/health").status_code == 200
                assert stub.Drain(pb.DrainRequest(), metadata=authorised).num_open_requests == 0
                assert process.process.wait(60) == 0
    assert not any("graceful shutdown exceeded" in line for line in process.log)


def test_a_prompt_is_embedded(stub: Any) -> None:
    prompt = pb.Prompt(token_ids=pb.TokenIds(ids=b"abc"))
    plain = stub.Embed(pb.EmbedRequest(prompt=prompt, pooling="last", normalize=False))
    assert (list(plain.values), plain.num_prompt_tokens) == ([4.0, 3.0, ord("c")], 3)
    length = sum(value**2 for value in stub.Embed(pb.EmbedRequest(prompt=prompt)).values)
    assert abs(length - 1) < 1e-6
    with pytest.raises(grpc.RpcError) as caught:
        stub.Embed(pb.EmbedRequest(prompt=prompt, pooling="cls"))
    assert error_of(caught.value)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "pooling")
