"""Chat templates that do not end, or make too much, are refused; all others make what they always made."""

import time
from pathlib import Path

import pytest
from transformers.utils import chat_template_utils

import paceline
from paceline.core.errors import InputError
from paceline.engine import templates, text
from paceline.engine.templates import BoundedTemplates, EndlessTemplateError, within
from paceline.engine.text import Text

DEMO = Path(paceline.__file__).parent / "demo" / "target"
ASK = [{"role": "user", "content": "Hi"}]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
BRANCHES = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}"
BOMBS = {
    "power": "{{ 10 ** 10 ** 8 }}",
    "powers": "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "times": "{{ 'x' * 10 ** 10 }}",
    "list": "{{ ([1] * 10 ** 10)|length }}",
    "doubled": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "added": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "centered": "{{ 'x'|center(10 ** 10) }}",
    "filled": "{{ '1'.zfill(9999999999) }}",
    "bytes": "{{ (5).to_bytes(9999999999) }}",
    "format": "{{ '%9999999999d' % 1 }}",
    "format as told": "{{ '%*d' % (9999999999, 1) }}",
    "formatted": "{{ '{:>9999999999}'.format('x') }}",
    "filter": "{{ '%9999999999d'|format(1) }}",
    "replaced": "{% set ns = namespace(x='aa') %}{% for i in range(60) %}"
    "{% set ns.x = ns.x|replace('a', 'aa') %}{% endfor %}",
    "method": "{% set ns = namespace(x='aa') %}{% for i in range(60) %}"
    "{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}",
    "joined": "{% set b = 'x' * 999999 %}{{ b.join(b) }}",
    "joined from a filter": "{% set b = 'x' * 999999 %}{{ range(99999)|map('string')|join(b) }}",
    "sums": "{{ ([[1] * 9999] * 9999)|sum(start=[])|length }}",
    "slices": "{% set ns = namespace(x='x' * 999999, k=[]) %}{% for i in range(99999) %}"
    "{% set ns.k = ns.k + [ns.x[1:]] %}{% endfor %}",
    "capitals": "{% set ns = namespace(x='x' * 999999, k=[]) %}{% for i in range(99999) %}"
    "{% set ns.k = ns.k + [ns.x|upper] %}{% endfor %}",
    "batch": "{{ [1]|batch(9999999999, 'x')|list }}",
    "words": "{{ lipsum(n=9999999999) }}",
    "margin": "{{ [[1]]|tojson(indent=9999999999) }}",
    "tabs": "{{ '\t'.expandtabs(9999999999) }}",
    "output": "{% set b = 'x' * 999999 %}{% for i in range(99999) %}{{ b }}{% endfor %}",
    "kept": "{% macro m() %}{% set b = 'x' * 999999 %}{% for i in range(99999) %}{{ b ~ i }}{% endfor %}{% endmacro %}"
    "{{ m()|length }}",
}


def with_template(folder: Path, source: str) -> Text:
    path = folder / "template.jinja"
    path.write_text(source)
    return Text(DEMO, path)


@pytest.mark.parametrize("source", [LOOP, BRANCHES], ids=["loop", "branches"])
def test_template_without_end(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "TEMPLATE_TRIAL_S", 0.2)
    mine = with_template(tmp_path, source)
    with pytest.raises(EndlessTemplateError, match="of a processor"):
        mine.chat(ASK)
    monkeypatch.setattr(mine.tokenizer, "apply_chat_template", None)
    with pytest.raises(EndlessTemplateError):
        mine.chat(ASK)  # without a new try
    assert not templates.CLOCK._running
    assert sum(i for i in range(100_000)) == 4999950000, "nothing is raised in this thread any more"


def test_end_with_a_clients_messages_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "RENDER_S", 0.2)
    mine = with_template(tmp_path, "{% if messages|length > 2 %}" + LOOP + "{% endif %}{{ messages[0].content }}")
    for _ in range(2):
        with pytest.raises(EndlessTemplateError):
            mine.chat(ASK * 3)
        assert mine.render(ASK) == "Hi", "others are served"


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_what_makes_too_much(bomb: str, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(bomb)
    with pytest.raises(InputError):
        Text(DEMO, path).render(ASK)
    assert not templates.CLOCK._running


def test_watch_stops_nothing_that_ended() -> None:
    """Very short limits: the stop may come at any moment around the end of the work."""
    ended = stopped = 0
    until = time.monotonic() + 1.0
    while time.monotonic() < until and not (ended and stopped):
        try:
            within(0.001 if ended else 9.0, lambda: sum(i * i for i in range(30_000)))
            ended += 1
        except EndlessTemplateError:
            stopped += 1
    assert ended
    assert not templates.CLOCK._running


HONEST = (
    "{%- set ns = namespace(seen=0) -%}{%- for m in messages[::-1] -%}{%- set ns.seen = ns.seen + 1 -%}"
    "<|{{ m.role ~ '|' + m['content'].replace('i', 'ii')|trim|replace('H', 'h') }}>{{ '=' * 20 }}"
    "{{ loop.index * 2 ** 3 }}"
    "{{ '%s-%03d' % (m.role, 7) }}{{ '{:>5}'.format(m.role) }}{{ ['a', 'b']|join(', ') }}{{ ', '.join(['c', 'd']) }}"
    "{{ {'a': [1, 2]}|tojson(indent=2) }}{{ 'a\nb'|indent(4) }}{{ 'x'|center(9) }}{{ [1, 2, 3]|batch(2)|list }}"
    "{{ [3, 1]|sort|map('string')|join('/') }}{{ m|items|list }}{{ -3 // 2 }}{{ 7 % 3 }}{{ 1.5 + 2 }}{{ [1] + [2] }}"
    "{%- endfor -%}{% macro w(t) %}[{{ t }}]{% endmacro %}{{ w('q') ~ w('r') }}"
    "{% if add_generation_prompt %}!{% endif %}"
)


def test_honest_template_is_rendered_as_ever(tmp_path: Path) -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    outs = []
    for kind in (ImmutableSandboxedEnvironment, BoundedTemplates):
        chat_template_utils.ImmutableSandboxedEnvironment = kind
        made = chat_template_utils._cached_compile_jinja_template(HONEST)
        outs.append(made.render(messages=[*ASK, {"role": "assistant", "content": "Hi i"}], add_generation_prompt=True))
    assert outs[0] == outs[1]
    assert len(outs[0]) > 300
