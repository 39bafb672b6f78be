"""The `--json` of the commands that measure."""

from __future__ import annotations

from pathlib import Path

import click

json_option = click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write figures here."
)


def write_json(path: Path | None, figures: object) -> None:
    """Raises OSError."""
    if path is not None:
        import msgspec

        path.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
