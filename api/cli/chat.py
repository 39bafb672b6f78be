"""`hasten chat`: talk to a model in the terminal."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
from hasten.api.cli.chat_client import ChatClient, ChatError
from hasten.api.cli.flags import SERVING, FlagCommand, build_options
from hasten.core.options import EngineOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

HELP = """\
/help             this list
/clear            forget the conversation
/system TEXT      set what the model is told first, and start anew
/set NAME VALUE   set a sampling parameter, as in: /set temperature 0.7
/show             the parameters and the length of the conversation
/retry            answer the last question again
/quit             leave (also Ctrl-D)

Ctrl-C stops an answer. A line that ends in \\ goes on in the next one; a line of three quotes
begins and ends a text of many lines."""

DEFAULT_PARAMETERS = {"temperature": 0.6}
"""Small models lose the thread at 1.0."""


@click.command(cls=FlagCommand, option_classes=(EngineOptions,), defaults=SERVING)
@click.option("--url", help="Talk to this server instead of starting one.")
@click.option("--api-key", envvar="HASTEN_API_KEY", show_envvar=True, help="Its bearer token.")
@click.option("--system", help="What the model is told first.")
def chat(url: str | None, api_key: str | None, system: str | None, **values: Any) -> None:
    """Talk to a model in the terminal."""
    engine = build_options(EngineOptions, values)
    # Here and not above: --help should not wait for them.
    from hasten.api.client import EngineError
    from rich.console import Console

    console = Console(highlight=False)
    try:
        with contextlib.ExitStack() as stack:
            client = ChatClient(url, api_key) if url else stack.enter_context(_own_server(engine))
            name = client.model_name()
            console.print(f"[bold]{name}[/]  [dim]/help for help, Ctrl-D to leave[/]")
            Conversation(client, console, system).run()
    except (ChatError, EngineError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _own_server(engine: EngineOptions) -> contextlib.AbstractContextManager[ChatClient]:
    from hasten.api.cli.local_server import local_server

    return local_server(engine, hide_log=True)


@dataclass(slots=True)
class Conversation:
    """The loop: read, answer, repeat; lines that begin with / are for the terminal itself."""

    client: ChatClient
    console: Console
    system: str | None = None
    read_line: Callable[[str], str] = input
    messages: list[dict[str, str]] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=lambda: dict(DEFAULT_PARAMETERS))

    def run(self) -> None:
        """Until the end of the input or /quit."""
        _prepare_line_editing()
        self._clear()
        while (text := self._read()) is not None:
            if text.startswith("/"):
                if not self._command(text):
                    return
            elif text.strip():
                self.messages.append({"role": "user", "content": text})
                self._answer()

    def _read(self) -> str | None:
        """What the user says next, of one or many lines; None at the end."""
        try:
            lines = [self.read_line("> ")]
            if lines[0].strip() == '"""':
                return "\n".join(iter(lambda: self.read_line(". "), '"""'))
            while lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                lines.append(self.read_line(". "))
        except EOFError:
            return None
        except KeyboardInterrupt:
            self.console.print()
            return ""
        return "\n".join(lines)

    def _answer(self) -> None:
        pieces: list[str] = []
        try:
            # Closing the stream is what makes the server stop.
            with contextlib.closing(self.client.stream(self.messages, self.parameters)) as stream:
                self._show(stream, pieces)
            self.console.print(f"[dim]{self.client.statistics}[/]")
        except KeyboardInterrupt:
            self.console.print("\n[dim]stopped[/]")
        except ChatError as error:
            self.console.print(f"[red]{error}[/]")
        if pieces:
            self.messages.append({"role": "assistant", "content": "".join(pieces)})
        else:
            self.messages.pop()

    def _show(self, stream: Iterator[str], pieces: list[str]) -> None:
        for piece in stream:
            pieces.append(piece)
            self.console.print(piece, end="", markup=False, soft_wrap=True)
        self.console.print()

    def _command(self, line: str) -> bool:
        """Carry out a command; False when it is time to leave."""
        name, _, argument = line.partition(" ")
        match name:
            case "/quit" | "/exit":
                return False
            case "/help":
                self.console.print(HELP, markup=False)
            case "/clear":
                self._clear()
            case "/system":
                self.system = argument.strip() or None
                self._clear()
            case "/set":
                self._set(argument)
            case "/show":
                self.console.print(
                    f"{len(self.messages)} messages, parameters {self.parameters}", markup=False
                )
            case "/retry":
                self._retry()
            case _:
                self.console.print(f"no command {name}; /help lists them", markup=False)
        return True

    def _clear(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def _set(self, argument: str) -> None:
        import json

        name, _, value = argument.strip().partition(" ")
        try:
            self.parameters[name] = json.loads(value)
        except ValueError:
            self.console.print("as in: /set temperature 0.7", markup=False)

    def _retry(self) -> None:
        while self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if self.messages and self.messages[-1]["role"] == "user":
            self._answer()


def _prepare_line_editing() -> None:
    """History and editing of input lines, where the platform has them."""
    with contextlib.suppress(ImportError):
        import readline

        readline.set_history_length(1000)
