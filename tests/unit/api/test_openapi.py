"""The OpenAPI document says what the server does."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from hasten.api.http.openapi import BODIES


@pytest.fixture(name="document", scope="module")
def _document(http: httpx.Client) -> dict[str, Any]:
    answer = http.get("/openapi.json")
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body


def references(node: object) -> set[str]:
    """All that a document refers to."""
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    if isinstance(node, list):
        return set().union(*map(references, node))
    return set()


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known


def test_every_field_of_a_body_is_listed(document: dict[str, Any]) -> None:
    for path, kind in BODIES.items():
        content = document["paths"][path]["post"]["requestBody"]["content"]
        name = content["application/json"]["schema"]["$ref"].rpartition("/")[-1]
        listed = document["components"]["schemas"][name]
        assert set(listed["properties"]) == set(kind.__struct_encode_fields__)
        assert listed["additionalProperties"] is False


def test_every_path_is_served(http: httpx.Client, document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method in operations:
            asked = http.request(
                method, path.replace("{", "").replace("}", ""), content=b"nonsense"
            )
            assert asked.status_code != 405, (method, path)
            assert str(asked.status_code) in operations[method]["responses"], (method, path)


def test_errors_have_the_shape_that_is_listed(http: httpx.Client, document: dict[str, Any]) -> None:
    error = document["components"]["schemas"]["Error"]["properties"]["error"]
    body = http.post("/v1/completions", content=b"{").json()
    assert set(body["error"]) == set(error["required"])
    assert msgspec.json.encode(body)
