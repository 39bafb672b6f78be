from __future__ import annotations

from pathlib import Path

import pytest
from hasten.evals.rows import DataFolder, PromptRow
from hasten.evals.suite import SuiteError, load_suite, shipped_suites

HEAD = 'name = "mine"\ndescription = "d"\n'
TEXT = '[[blocks]]\nkind = "text"\nname = "t"\nnum_windows = 2\nwindow_len = 9\n'


@pytest.mark.parametrize("name", shipped_suites())
def test_shipped_suites_load(name: str) -> None:
    suite = load_suite(name)
    assert suite.name == name
    assert any(block.limits for block in suite.blocks)


@pytest.mark.parametrize("name", shipped_suites())
def test_shipped_suites_ask_for_no_more_prompts_than_are_shipped(name: str) -> None:
    num_shipped = len(DataFolder().rows("hasten:prompts.jsonl", PromptRow))
    for block in load_suite(name).blocks:
        if getattr(block, "source", "") == "hasten:prompts.jsonl":
            assert getattr(block, "num_prompts", 0) <= num_shipped


def test_quick_needs_no_outside_data() -> None:
    for block in load_suite("quick").blocks:
        assert getattr(block, "source", "hasten:").startswith("hasten:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + TEXT + "windows = 3\n", r"mine\.toml: .*unknown field `windows`"),
        (HEAD + TEXT.replace("text", "txet", 1), r"mine\.toml: Invalid value 'txet'"),
        (
            HEAD + TEXT + "limits = { kl_men = 0.1 }\n",
            r"no measure 'kl_men'; did you mean 'kl_mean'",
        ),
        (HEAD + TEXT + "limits = { kl_mean = 'low' }\n", r"Expected `float`"),
        (HEAD + TEXT + TEXT, "block names must differ: t"),
        (HEAD + "alpha = 0.7\n" + TEXT, "alpha must be in"),
        (HEAD + "blocks = [", r"mine\.toml: "),
        (TEXT, "required field `name`"),
    ],
)
def test_a_wrong_suite_is_named_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(SuiteError, match=message):
        load_suite(str(path))


def test_an_unknown_suite_lists_those_that_exist() -> None:
    with pytest.raises(SuiteError, match=r"not one of .*quick"):
        load_suite("quik")


def test_the_hash_covers_limits(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    hashes = set()
    for limit in (0.1, 0.2):
        path.write_text(HEAD + TEXT + f"limits = {{ kl_mean = {limit} }}\n")
        hashes.add(load_suite(str(path)).hash)
    assert len(hashes) == 2
