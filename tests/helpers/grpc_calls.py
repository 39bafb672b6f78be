"""Calls of the gRPC front for tests."""

from __future__ import annotations

import re
from collections.abc import Sequence

import grpc
from hasten.api.grpc import hasten_pb2 as pb
from hasten.api.grpc.errors import PARAM_KEY

from tests.helpers.server_process import ServerProcess


def grpc_address(server: ServerProcess) -> str:
    """Where a server process answers gRPC, from what it has logged."""
    found = next(filter(None, (re.search(r"gRPC on port (\d+)", line) for line in server.log)))
    return f"127.0.0.1:{found[1]}"


def text_prompt(text: str) -> pb.Prompt:
    return pb.Prompt(text=text)


def joined(messages: Sequence[pb.GenerateResponse]) -> dict[int, str]:
    """The text of each sample; every sample must end once, with its last message."""
    texts: dict[int, str] = {}
    ended: set[int] = set()
    for message in messages:
        assert message.sample_idx not in ended, "a message after the last one"
        texts[message.sample_idx] = texts.get(message.sample_idx, "") + message.text
        if message.finish_reason:
            ended.add(message.sample_idx)
    assert ended == set(texts)
    return texts


def error_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str | None, str]:
    """Status, the field at fault, and the message."""
    metadata = dict(error.trailing_metadata() or ())
    return error.code(), metadata.get(PARAM_KEY), error.details()
