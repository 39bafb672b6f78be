"""Items whose answer is JSON of a given schema: facts to write down, functions to call.

Made from a seed, so nothing is downloaded and nothing can have been learned by heart. Each comes
with solved examples of its kind as earlier turns. Exercised by
`pytest tests/unit/evals/test_structured.py`.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Kind = Literal["schema", "tool"]
Schema = dict[str, Any]
Fact = tuple[str, dict[str, Any]]
"""A sentence, and what it says."""

_NAMES = ("Anna", "Bruno", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas")
_CITIES = ("Oslo", "Lisbon", "Vienna", "Dublin", "Athens", "Prague", "Turin", "Ghent")
_GOODS = ("lamp", "kettle", "chair", "bicycle", "clock", "basket", "mirror", "tent")
_COLOURS = ("red", "green", "blue", "white")
_UNITS = ("celsius", "fahrenheit")
_CURRENCIES = ("EUR", "USD", "GBP", "JPY")
_SONGS = ("Blue Harbour", "Old Stairs", "Morning Rain", "Paper Boats", "Long Way")


@dataclass(frozen=True, slots=True)
class StructuredRow:
    """A conversation that wants JSON that fits `schema`; `answer` is the right one."""

    messages: list[dict[str, str]]
    schema: Schema
    answer: str


def structured_rows(
    kind: Kind, num_items: int, num_examples: int, seed: int
) -> list[StructuredRow]:
    """`num_items` items, each after `num_examples` solved ones of its kind."""
    rng = random.Random(f"{kind}/{num_examples}/{seed}")  # noqa: S311 - reproducible, not secret
    make = _schema_row if kind == "schema" else _tool_row
    return [make(rng, num_examples) for _ in range(num_items)]


def parse(text: str) -> Any:
    """The first JSON object of an answer, whatever stands around it; None if there is none."""
    begin = text.find("{")
    if begin < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, begin)[0]
    except ValueError:
        return None


def fits(value: Any, schema: Schema) -> bool:
    """Whether a value has this schema: the parts of JSON Schema that the items here use."""
    if "enum" in schema:
        return value in schema["enum"]
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    return _HAS_TYPE[schema["type"]](value, schema)


def _is_object(value: Any, schema: Schema) -> bool:
    properties = schema["properties"]
    return (
        isinstance(value, dict)
        and set(value) == set(properties)
        and all(fits(value[key], properties[key]) for key in properties)
    )


_HAS_TYPE: dict[str, Callable[[Any, Schema], bool]] = {
    "object": _is_object,
    "string": lambda value, _: isinstance(value, str),
    "boolean": lambda value, _: isinstance(value, bool),
    "integer": lambda value, _: isinstance(value, int) and not isinstance(value, bool),
}


def _object(**properties: Schema) -> Schema:
    """All of them required, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_STRING: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}
_BOOLEAN: Schema = {"type": "boolean"}


def _one_of(values: Sequence[str]) -> Schema:
    return {"enum": list(values)}


# Facts to write down


def _person(rng: random.Random) -> Fact:
    name, age, city = rng.choice(_NAMES), rng.randrange(18, 90), rng.choice(_CITIES)
    member = rng.random() < 0.5
    text = f"{name} is {age} years old and lives in {city}. {name} is {_not(member)}a member."
    return text, {"name": name, "age": age, "city": city, "member": member}


def _product(rng: random.Random) -> Fact:
    item, colour, price = rng.choice(_GOODS), rng.choice(_COLOURS), rng.randrange(5, 400)
    in_stock = rng.random() < 0.5
    text = f"The {colour} {item} costs {price} euros. It is {_not(in_stock)}in stock."
    return text, {"item": item, "colour": colour, "price": price, "in_stock": in_stock}


def _not(true: bool) -> str:
    return "" if true else "not "


_FACTS: tuple[tuple[Callable[[random.Random], Fact], Schema], ...] = (
    (_person, _object(name=_STRING, age=_INTEGER, city=_STRING, member=_BOOLEAN)),
    (
        _product,
        _object(item=_STRING, colour=_one_of(_COLOURS), price=_INTEGER, in_stock=_BOOLEAN),
    ),
)


def _schema_row(rng: random.Random, num_examples: int) -> StructuredRow:
    make, schema = rng.choice(_FACTS)
    asked = f"Write what the text says as JSON of this schema, and nothing else.\n{_dump(schema)}"
    *examples, last = (make(rng) for _ in range(num_examples + 1))
    return _row(asked, examples, last, schema)


# Functions to call


def _weather(rng: random.Random) -> Fact:
    city, unit = rng.choice(_CITIES), rng.choice(_UNITS)
    return f"How warm is it in {city}, in {unit}?", {"city": city, "unit": unit}


def _alarm(rng: random.Random) -> Fact:
    hour, minute = rng.randrange(5, 23), rng.randrange(0, 60, 5)
    return f"Wake me at {hour}:{minute:02}.", {"hour": hour, "minute": minute}


def _music(rng: random.Random) -> Fact:
    title, loud = rng.choice(_SONGS), rng.random() < 0.5
    return f"Play {title}, {'loud' if loud else 'not loud'}.", {"title": title, "loud": loud}


def _currency(rng: random.Random) -> Fact:
    amount, (source, target) = rng.randrange(2, 900), rng.sample(_CURRENCIES, 2)
    text = f"How much is {amount} {source} in {target}?"
    return text, {"amount": amount, "source": source, "target": target}


_TOOLS: dict[str, tuple[Callable[[random.Random], Fact], Schema]] = {
    "get_weather": (_weather, _object(city=_STRING, unit=_one_of(_UNITS))),
    "set_alarm": (_alarm, _object(hour=_INTEGER, minute=_INTEGER)),
    "play_music": (_music, _object(title=_STRING, loud=_BOOLEAN)),
    "convert_currency": (
        _currency,
        _object(amount=_INTEGER, source=_one_of(_CURRENCIES), target=_one_of(_CURRENCIES)),
    ),
}


def _tool_row(rng: random.Random, num_examples: int) -> StructuredRow:
    """Examples show other calls of whatever functions; the schema is that of any call."""
    calls = [_call(rng) for _ in range(num_examples + 1)]
    tools = [{"name": name, "parameters": schema} for name, (_, schema) in _TOOLS.items()]
    asked = (
        'Answer with the function to call, as JSON {"name": ..., "arguments": {...}}, and nothing '
        f"else. The functions:\n{_dump(tools)}"
    )
    one_call = [
        _object(name=_one_of([name]), arguments=schema) for name, (_, schema) in _TOOLS.items()
    ]
    return _row(asked, calls[:-1], calls[-1], {"anyOf": one_call})


def _call(rng: random.Random) -> Fact:
    name = rng.choice(tuple(_TOOLS))
    text, arguments = _TOOLS[name][0](rng)
    return text, {"name": name, "arguments": arguments}


def _row(asked: str, examples: Sequence[Fact], last: Fact, schema: Schema) -> StructuredRow:
    messages = [{"role": "system", "content": asked}]
    for text, answer in examples:
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": _dump(answer)})
    messages.append({"role": "user", "content": last[0]})
    return StructuredRow(messages, schema, _dump(last[1]))


def _dump(value: Any) -> str:
    return json.dumps(value)
