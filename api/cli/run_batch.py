"""`hasten run-batch`: a file of requests in OpenAI's batch format."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from hasten.api.cli.flags import SERVING, FlagCommand, build_options
from hasten.core.options import EngineOptions

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from hasten.api.batch import BatchSummary
    from hasten.api.cli.chat_client import ChatClient

_INPUT = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command(name="run-batch", cls=FlagCommand, option_classes=(EngineOptions,), defaults=SERVING)
@click.option("-i", "--input-file", type=_INPUT, required=True, help="Requests, one a line.")
@click.option("-o", "--output-file", type=_OUTPUT, required=True, help="Their answers.")
@click.option("--url", help="Ask this server instead of starting one.")
@click.option("--api-key", envvar="HASTEN_API_KEY", show_envvar=True, help="Its bearer token.")
@click.option(
    "--max-concurrency",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Most requests at once.",
)
def run_batch(
    input_file: Path,
    output_file: Path,
    url: str | None,
    api_key: str | None,
    max_concurrency: int,
    **values: Any,
) -> None:
    """Answer a file of requests in OpenAI's batch format.

    Run again with the same files, it goes on where it was interrupted. Exits with 1 when a line is
    no request or an answer is an error.
    """
    engine = build_options(EngineOptions, values)
    # Here and not above: --help should not wait for them.
    import aiohttp
    from hasten.api.batch import BatchError
    from hasten.api.client import EngineError

    try:
        with _server(url, api_key, engine) as client:
            summary = _run(client, input_file, output_file, max_concurrency)
    except (BatchError, EngineError, aiohttp.ClientError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    _report(summary)
    sys.exit(1 if summary.num_failed else 0)


def _server(
    url: str | None, api_key: str | None, engine: EngineOptions
) -> AbstractContextManager[ChatClient]:
    from hasten.api.cli.chat_client import ChatClient
    from hasten.api.cli.local_server import local_server

    if url is not None:
        return nullcontext(ChatClient(url, api_key))
    return local_server(engine, hide_log=True)


def _run(client: ChatClient, source: Path, target: Path, max_concurrency: int) -> BatchSummary:
    from hasten.api.batch import BatchRunner, keep_answered, read_requests

    answered = keep_answered(target)
    with source.open("rb") as lines, target.open("ab") as output:
        runner = BatchRunner(client.url, client.headers, max_concurrency, output)
        return asyncio.run(runner.run(read_requests(lines), answered))


def _report(summary: BatchSummary) -> None:
    for bad in summary.bad_lines:
        click.echo(bad.message, err=True)
    statuses = ", ".join(f"{count} of status {s}" for s, count in sorted(summary.statuses.items()))
    click.echo(
        f"answered: {statuses or 'none'}; kept from before: {summary.num_kept}; "
        f"no requests: {len(summary.bad_lines)}",
        err=True,
    )
