"""API keys: files, recognition, limits."""

from __future__ import annotations

import contextvars
from pathlib import Path

import pytest
from click.testing import CliRunner
from hasten.api.cli.main import main
from hasten.api.security import Key, KeyFileError, Keyring
from hasten.api.security.caller import Caller, caller, calling
from hasten.api.security.keys import ANYBODY, digest_of, new_key
from hasten.api.security.limits import KeyLimits

ALICE, BOB = "alice's key", "bob's key"


@pytest.fixture(name="key_file")
def _key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[alice]\nsha256 = "{digest_of(ALICE).hex()}"\nadmin = true\n'
        f'[bob]\nsha256 = "{digest_of(BOB).hex()}"\nmax_concurrent_requests = 2\n'
        "requests_per_minute = 60\n"
    )
    return path


def test_a_file_tells_who_is_who(key_file: Path) -> None:
    ring = Keyring.of(None, str(key_file))
    assert ring is not None
    alice, bob = ring.find(f"Bearer {ALICE}".encode()), ring.find(f"Bearer {BOB}".encode())
    assert alice == Key("alice", digest_of(ALICE), is_admin=True)
    assert bob == Key("bob", digest_of(BOB), 2, 60)
    assert ring.find(f"bearer {BOB}".encode()) == bob  # RFC 9110, 11.1


@pytest.mark.parametrize("given", ["", "Bearer ", "Bearer mallory's", ALICE, f"Basic {ALICE}"])
def test_others_are_nobody(key_file: Path, given: str) -> None:
    ring = Keyring.of(None, str(key_file))
    assert ring is not None
    assert ring.find(given.encode()) is None


def test_a_call_may_be_closed_in_another_context() -> None:
    who = Caller(Key("alice"))
    call = calling(who)
    elsewhere = contextvars.copy_context()
    elsewhere.run(call.__enter__)
    assert elsewhere.run(caller) is who
    assert caller().key is ANYBODY
    call.__exit__(None, None, None)
    assert caller().key is ANYBODY


def test_the_one_key_of_a_flag_may_do_everything(key_file: Path) -> None:
    ring = Keyring.of("secret", str(key_file))
    assert ring is not None
    found = ring.find(b"Bearer secret")
    assert found is not None
    assert found.name == "default"
    assert found.is_admin
    assert ring.find(f"Bearer {BOB}".encode()) is not None
    assert Keyring.of(None, None) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no key"),
        ("= 1", "keys.toml"),
        ("alice = 1", "must be a table"),
        ("[alice]\nsha256 = 'abc'", "64 hexadecimal digits"),
        ("[alice]\nsha = 'abc'", "unknown field 'sha'"),
        ("[default]\n", "not 'default'"),
        ('["a b"]\n', "a name has letters"),
        (f"[a]\nsha256 = '{'0' * 64}'\nadmin = 1", "admin must be true or false"),
        (f"[a]\nsha256 = '{'0' * 64}'\nrequests_per_minute = 0", "whole number from 1 on"),
        (f"[a]\nsha256 = '{'0' * 64}'\nmax_concurrent_requests = true", "whole number"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(KeyFileError, match=message):
        Keyring.of(None, str(path))


def test_no_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"none\.toml: No such file"):
        Keyring.of(None, str(tmp_path / "none.toml"))


def test_limits_of_requests_at_once() -> None:
    limits, key = KeyLimits(), Key("bob", max_concurrent_requests=2)
    assert limits.begin(key, 0.0) is None
    assert limits.begin(key, 0.0) is None
    exceeded = limits.begin(key, 0.0)
    assert exceeded is not None
    assert "2 requests" in exceeded.message
    limits.end(key)
    assert limits.begin(key, 0.0) is None
    assert limits.num_active(key) == 2


def test_limits_per_minute_come_back_evenly() -> None:
    limits, key = KeyLimits(), Key("bob", requests_per_minute=60)
    for _ in range(60):
        assert limits.begin(key, 0.0) is None
        limits.end(key)
    exceeded = limits.begin(key, 0.25)
    assert exceeded is not None
    assert exceeded.retry_after_s == pytest.approx(0.75)
    assert limits.begin(key, 1.0) is None
    assert limits.begin(key, 1.0) is not None


def test_keys_differ_and_the_command_makes_an_entry(tmp_path: Path) -> None:
    assert new_key() != new_key()
    done = CliRunner().invoke(main, ["key", "carol", "--admin"])
    assert done.exit_code == 0
    made = done.stderr.split()[-1]
    path = tmp_path / "keys.toml"
    path.write_text(done.stdout)
    ring = Keyring.of(None, str(path))
    assert ring is not None
    found = ring.find(f"Bearer {made}".encode())
    assert found is not None
    assert found.name == "carol"
    assert found.is_admin
