"""`hasten chat` and the demo, with a scripted user."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from hasten.api.cli.chat import Conversation
from hasten.api.cli.chat_client import ChatClient, ChatError
from hasten.api.demo import QUESTION, ask
from rich.console import Console

from tests.helpers.server_process import ServerProcess


@pytest.fixture
def client(server: ServerProcess) -> ChatClient:
    return ChatClient(f"{server.url}/v1/")


def talk(client: ChatClient, *lines: str, system: str | None = None) -> tuple[Conversation, str]:
    """What the terminal shows when a user types these lines and then Ctrl-D."""
    shown = io.StringIO()
    typed: Iterator[str] = iter(lines)

    def read_line(_prompt: str) -> str:
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    conversation = Conversation(
        client, Console(file=shown, width=100), system=system, read_line=read_line
    )
    conversation.run()
    return conversation, shown.getvalue()


def test_a_conversation(client: ChatClient) -> None:
    conversation, shown = talk(
        client, "/set max_tokens 8", "/set temperature 0", "Say hello.", "And\\", "again.", "/show"
    )
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["user", "assistant"] * 2
    assert conversation.messages[2]["content"] == "And\nagain."
    assert conversation.messages[1]["content"] in shown
    assert "tok/s" in shown
    assert "4 messages" in shown


def test_commands(client: ChatClient) -> None:
    conversation, shown = talk(
        client, "/help", "/set max_tokens 2", "hi", "/retry", "/nothing", "/quit", "never read"
    )
    assert len(conversation.messages) == 2
    assert "/system TEXT" in shown
    assert "no command /nothing" in shown


def test_many_lines_and_a_system_prompt(client: ChatClient) -> None:
    conversation, _ = talk(
        client, "/set max_tokens 2", '"""', "a", "", "b", '"""', system="Be kind."
    )
    assert [message["content"] for message in conversation.messages[:2]] == ["Be kind.", "a\n\nb"]
    conversation, _ = talk(client, "/set max_tokens 2", "x", "/system other", system="Be kind.")
    assert conversation.messages == [{"role": "system", "content": "other"}]


def test_an_error_is_shown_and_the_question_forgotten(client: ChatClient) -> None:
    conversation, shown = talk(client, "/set temperature 9", "hi")
    assert "temperature: must be from 0.0 to 2.0" in shown
    assert conversation.messages == []


def test_no_server_is_one_line() -> None:
    with pytest.raises(ChatError, match=r"http://127\.0\.0\.1:9 does not answer: "):
        ChatClient("http://127.0.0.1:9").model_name()


def test_the_demo_shows_answer_and_figures(
    client: ChatClient, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = ask(client)
    assert len(capsys.readouterr().out) > len(QUESTION)
    assert figures.startswith("TTFT ")
    assert " ms, " in figures
    assert "tok/s" in figures
