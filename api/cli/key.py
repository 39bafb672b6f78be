"""`hasten key`: a new API key, and its entry for the key file."""

from __future__ import annotations

import click
from hasten.api.security.keys import digest_of, new_key


@click.command()
@click.argument("name")
@click.option("--admin", is_flag=True, help="may see what runs (/v1/debug/requests)")
def key(name: str, admin: bool) -> None:
    """Make an API key for NAME.

    The key goes to whoever is to use it, and is kept nowhere; the table goes into the file that
    `hasten serve --api-key-file` reads.
    """
    made = new_key()
    click.echo(f"key for {name}: {made}\n", err=True)
    click.echo(f'[{name}]\nsha256 = "{digest_of(made).hex()}"')
    if admin:
        click.echo("admin = true")
