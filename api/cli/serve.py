"""`hasten serve`: the HTTP server."""

from __future__ import annotations

import sys
from typing import Any

import click
from hasten.api.cli.flags import SERVING, FlagCommand, build_options
from hasten.api.observability.log_lines import set_up_logging
from hasten.core.options import EngineOptions, ServerOptions


@click.command(cls=FlagCommand, option_classes=(EngineOptions, ServerOptions), defaults=SERVING)
@click.argument("model_argument", metavar="[MODEL]", required=False)
def serve(model_argument: str | None, **values: Any) -> None:
    """Serve MODEL over HTTP, with OpenAI's API.

    MODEL is a directory, a GGUF file, or 'embedded' (the default): the same as --model.
    """
    if model_argument is not None:
        if click.get_current_context().get_parameter_source("model") is not _DEFAULT:
            raise click.UsageError("give the model as an argument or with --model, not both")
        values["model"] = model_argument
    engine = build_options(EngineOptions, values)
    server = build_options(ServerOptions, values)
    set_up_logging(server.log_format)
    # Here and not above: --help should not wait for a web server to be imported.
    from hasten.api.client import EngineError
    from hasten.api.http.server import ServerStartError, run_server

    try:
        status = run_server(engine, server)
    except (ServerStartError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except (EngineError, ValueError) as error:
        raise CannotServeError(str(error)) from error
    sys.exit(status)


class CannotServeError(click.ClickException):
    """What was asked for cannot be served here: the exit code is that of a wrong flag."""

    exit_code = click.UsageError.exit_code


_DEFAULT = click.core.ParameterSource.DEFAULT
