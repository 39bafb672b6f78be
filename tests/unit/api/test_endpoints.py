"""The small end points."""

import threading
from collections.abc import Iterable
from importlib.metadata import version

import httpx
import pytest
from hasten.api.text import detokenizer
from hasten.api.text.detokenizer import TokenBytes

from tests.helpers.fake_engine import EOS_ID, MARK_ID, TEMPLATE


def test_models(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    created = listed["data"][0]["created"]
    entry = {
        "id": "echo",
        "object": "model",
        "created": created,
        "owned_by": "hasten",
        "max_model_len": 4096,
    }
    assert listed == {"object": "list", "data": [entry]}
    assert http.get("/v1/models/echo").json() == entry
    assert http.get("/v1/models/other/name").status_code == 404


def test_health_ready_version(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").json() == {"status": "ready"}
    assert http.get("/version").json() == {"version": version("hasten")}


def test_tokenize_and_back(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"prompt": "aé"}).json()
    assert answer == {"tokens": [MARK_ID, 97, 0xC3, 0xA9], "count": 4, "max_model_len": 4096}
    plain = http.post("/tokenize", json={"prompt": "aé", "add_special_tokens": False}).json()
    assert plain["tokens"] == [97, 0xC3, 0xA9]
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "aé"}
    assert http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    assert http.post("/detokenize", json={"tokens": [EOS_ID + 2]}).status_code == 400


def test_long_texts_are_not_made_on_the_event_loop(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def text_of(vocabulary: TokenBytes, token_ids: Iterable[int]) -> str:
        threads.append(threading.current_thread().name)
        return detokenizer.text_of(vocabulary, token_ids)

    monkeypatch.setattr("hasten.api.http.about.text_of", text_of)
    tokens = [97] * 100_000
    assert http.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": "a" * 100_000}
    assert [name.rpartition("_")[0] for name in threads] == ["long-text"]


def test_tokenizer_info(http: httpx.Client) -> None:
    assert http.get("/tokenizer_info").json() == {
        "bos_token": "<mark>",
        "eos_token": "<eos>",
        "pad_token": None,
        "chat_template": TEMPLATE,
    }


def test_metrics_weigh_latency_by_tokens(http: httpx.Client) -> None:
    def value(name: str) -> float:
        lines = http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    gaps = value("hasten_inter_token_latency_seconds_count")
    firsts = value("hasten_time_to_first_token_seconds_count")
    finished = value('hasten_samples_finished_total{finish_reason="length"}')
    http.post("/v1/completions", json={"prompt": "a", "max_tokens": 10, "n": 2})
    assert value("hasten_inter_token_latency_seconds_count") - gaps == 18
    assert value("hasten_time_to_first_token_seconds_count") - firsts == 2
    assert value('hasten_samples_finished_total{finish_reason="length"}') - finished == 2
    assert value('hasten_num_free_blocks{kv_group="0"}') == 100
