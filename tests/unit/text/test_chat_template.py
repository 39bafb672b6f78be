import time

import pytest
from hasten.api.text.chat_template import ChatTemplate, ChatTemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from tests.helpers.timing import cpu_seconds

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USES_EVERYTHING = """\
{{ bos_token }}
{% if messages[0].role == 'system' %}
    {{ messages[0].content | tojson }}
{% endif %}
{%- for message in messages %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
  {% if message.role == 'assistant' %}
    {%- generation %}{{ message.content | trim }}{% endgeneration %}
  {%- else %}
[{{ message.role }}] {{ message.content }} {{ {'a': "<ü&>", 'b': [1, 2]} | tojson }}
  {%- endif %}
{% endfor %}
"""
MESSAGES = [
    {"role": "system", "content": "Be <brief> & 'kind'."},
    {"role": "user", "content": "Hé  "},
    {"role": "assistant", "content": " there "},
    {"role": "user", "content": "again\n"},
]


@pytest.mark.parametrize("source", [CHATML, USES_EVERYTHING])
@pytest.mark.parametrize("num_messages", [1, 2, 4])
def test_renders_as_transformers_does(source: str, num_messages: int) -> None:
    messages = MESSAGES[:num_messages]
    ours = ChatTemplate(source, {"bos_token": "<s>"}).render(messages)
    theirs = render_jinja_template(
        [messages], chat_template=source, add_generation_prompt=True, bos_token="<s>"
    )
    assert ours == theirs[0][0]


def test_a_last_message_of_the_assistant_is_continued() -> None:
    messages = [*MESSAGES[:2], {"role": "assistant", "content": "Once upon"}]
    assert ChatTemplate(CHATML, {}).render(messages).endswith("<|im_start|>assistant\nOnce upon")


def test_the_space_at_the_end_of_a_continued_message_stays() -> None:
    messages = [{"role": "assistant", "content": "Once "}]
    assert ChatTemplate(CHATML, {}).render(messages).endswith("assistant\nOnce ")


def test_a_message_that_is_not_shown_is_refused_in_linear_time() -> None:
    """As by templates that leave thoughts out; the text is the worst that a search can meet."""
    template = ChatTemplate("{{ messages[-1].content[2:] }}{{ 'a' * 400000 }}", {})
    messages = [{"role": "assistant", "content": "ab" + "a" * 400_000}]

    def render() -> None:
        with pytest.raises(ChatTemplateError, match="does not show"):
            template.render(messages)

    # `str.rfind` would take half a minute.
    assert cpu_seconds(render, repeat=1) < 10


def test_an_empty_answer_is_begun() -> None:
    template = ChatTemplate(CHATML, {})
    begun = [*MESSAGES[:2], {"role": "assistant", "content": ""}]
    assert template.render(begun) == template.render(MESSAGES[:2])


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% for i in range(9) %}{{ f(n - 1) if n }}{% endfor %}{% endmacro %}"
        "{{ f(30) }}",
    ],
)
def test_a_template_that_loops_is_stopped(source: str) -> None:
    begin_s = time.monotonic()
    with pytest.raises(ChatTemplateError, match=r"more than 0\.2 s"):
        ChatTemplate(source, {}).render(MESSAGES, limit_s=0.2)
    assert time.monotonic() - begin_s < 5


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.at_all }}", "has no attribute 'nothing'"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_what_a_template_refuses_is_said(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source, {}).render(MESSAGES)


def test_a_template_that_does_not_compile_is_refused_at_once() -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate("{% for %}", {})


def test_strftime_now_is_there() -> None:
    year = ChatTemplate("{{ strftime_now('%Y') }}", {}).render(MESSAGES)
    assert int(year) >= 2024
