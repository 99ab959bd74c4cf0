"""Chat templates that do not end, or make too much, are refused; all others make what they always made."""

from math import inf
from pathlib import Path

import pytest
from transformers.utils import chat_template_utils

import paceline
from paceline.core.errors import InputError
from paceline.engine import templates, text
from paceline.engine.templates import BoundedTemplates, EndlessTemplateError, look, within
from paceline.engine.text import Text

DEMO = Path(paceline.__file__).parent / "demo" / "target"
ASK = [{"role": "user", "content": "Hi"}]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
BRANCHES = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}"
NESTED = (
    "{% set ns = namespace(x=['ab'], y=['ab']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
)
BOMBS = {
    "power": "{{ 10 ** (10 ** 8) }}",
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
    "joined from a filter": "{% set b = 'x' * 999999 %}{{ range(9999)|map('string')|join(b) }}",
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
    "nested": f"{NESTED}{{{{ ns.x }}}}",
    "nested texts": f"{NESTED}{{{{ ns.x|string }}}}",
    "nested join": f"{NESTED}{{{{ 'a' ~ ns.x }}}}",
    "nested JSON": f"{NESTED}{{{{ ns.x|tojson }}}}",
    "nested format": f"{NESTED}{{{{ '%s' % ns.x }}}}",
    "nested braces": f"{NESTED}{{{{ '{{}}'.format(ns.x) }}}}",
    "nested message": f"{NESTED}{{{{ raise_exception(ns.x) }}}}",
    "nested equal": f"{NESTED}{{{{ ns.x == ns.y }}}}",
    "nested in": f"{NESTED}{{{{ ns.x in [ns.y] }}}}",
    "nested test": f"{NESTED}{{{{ ns.x is in [ns.y] }}}}",
    "nested select": f"{NESTED}{{{{ [ns.x]|select('eq', ns.y)|list }}}}",
    "nested count": f"{NESTED}{{{{ [ns.x].count(ns.y) }}}}",
    "nested key": NESTED.replace("[", "(").replace("]", ")") + "{{ {}[ns.x] }}",
    "nested namespace": "{% set ns = namespace(x=1) %}{% for i in range(60) %}"
    "{% set ns.x = namespace(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x }}",
    "long texts compared": "{% set a = 'a' * 2 ** 22 %}{% set b = 'a' * 2 ** 22 %}{{ ([a] * 2 ** 20).count(b) }}",
    "width as told": "{{ '{:{}}'.format('x', 9999999999) }}",
    "precision": "{{ 5|round(9999999, 'floor') }}",
    "sets": "{% macro m() %}{% set k = namespace(x=[]) %}{% set b = 'x' * 999999 %}{% for i in range(99999) %}"
    "{% set y %}{{ b }}{{ i }}{% endset %}{% set k.x = k.x + [y] %}{% endfor %}{% endmacro %}{{ m() }}",
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
    monkeypatch.undo()
    monkeypatch.setattr(text, "TEMPLATE_AGAIN_S", 0.0)
    mine = with_template(tmp_path, "{{ messages[0].content }}")
    monkeypatch.setattr(text, "TEMPLATE_TRIAL_S", -9.0)
    with pytest.raises(EndlessTemplateError):
        mine.chat(ASK)
    monkeypatch.undo()
    assert mine.render(ASK) == "Hi", "one slow rendering is not for ever"


def test_all_trials_of_a_role_share_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that uses nearly all of it, and then refuses, is not tried for as long again."""
    mine, given = with_template(tmp_path, "{{ raise_exception('x') }}"), list[float]()
    monkeypatch.setattr(text, "within", lambda seconds, *more: given.append(seconds) or within(seconds, *more))  # type: ignore[func-returns-value]
    with pytest.raises(InputError, match="refused"):
        mine.render([{"role": "assistant", "content": "a"}])
    *trials, last = given
    assert len(trials) > 3 and trials == sorted(trials, reverse=True) and trials[0] <= templates.TEMPLATE_TRIAL_S
    assert last == templates.render_seconds(1) < templates.render_seconds(5000) < templates.render_seconds(10**6) == 10


def test_time_grows_with_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, given = with_template(tmp_path, "{% for t in tools %}{{ t.function.name }}{% endfor %}"), list[float]()
    monkeypatch.setattr(text, "within", lambda seconds, *more: given.append(seconds) or within(seconds, *more))  # type: ignore[func-returns-value]
    tools = [{"type": "function", "function": {"name": f"f{n}", "parameters": {}}} for n in range(300)]
    assert mine.render(ASK * 8, tools=tools).endswith("f299") and given[-1] >= 3 > templates.render_seconds(8) + 1
    assert templates.render_seconds(1, 10**6) == templates.MOST_RENDER_S


def test_operations_are_held_to_what_is_given(tmp_path: Path) -> None:
    """One that has begun is not stopped: what is made of a short message is small."""
    mine = with_template(tmp_path, "{{ (messages[0].content * 2000000)|title|length }}")
    with pytest.raises(InputError, match="too long"):
        mine.render([{"role": "user", "content": "a"}])
    mine = with_template(tmp_path, "{{ messages[0].content ~ messages[0].content }}")
    assert len(mine.render([{"role": "user", "content": "a" * 10**6}])) == 2 * 10**6
    assert templates.USED.most == templates.MOST_TEMPLATE_CHARACTERS


def test_end_with_a_clients_messages_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "RENDER_S", 0.2)
    mine = with_template(tmp_path, "{% if messages|length > 2 %}" + LOOP + "{% endif %}{{ messages[0].content }}")
    for _ in range(2):
        with pytest.raises(EndlessTemplateError):
            mine.chat(ASK * 3)
        assert mine.render(ASK) == "Hi", "others are served"


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_what_makes_too_much(bomb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MOST_TEMPLATE_CHARACTERS", 1 << 20)
    monkeypatch.setattr(templates, "MOST_MADE_CHARACTERS", 1 << 23)
    path = tmp_path / "template.jinja"
    path.write_text(bomb)
    with pytest.raises(InputError, match=r"refused the messages \((it |'lipsum' is undefined)"):
        Text(DEMO, path).render(ASK)
    assert templates.USED.end == inf


def test_time_is_up_again_and_again() -> None:
    """Where a library swallows the error, the next look raises it."""

    def work() -> None:
        for _ in range(3):
            with pytest.raises(EndlessTemplateError):
                look()
        look()

    with pytest.raises(EndlessTemplateError):
        within(-1.0, work)
    look()


HONEST = (
    "{%- set ns = namespace(seen=0) -%}{%- for m in messages[::-1] -%}{%- set ns.seen = ns.seen + 1 -%}"
    "<|{{ m.role ~ '|' + m['content'].replace('i', 'ii')|trim|replace('H', 'h') }}>{{ '=' * 20 }}"
    "{{ loop.index * 2 ** 3 }}"
    "{{ '%s-%03d' % (m.role, 7) }}{{ '{:>5}'.format(m.role) }}{{ ['a', 'b']|join(', ') }}{{ ', '.join(['c', 'd']) }}"
    "{{ {'a': [1, 2]}|tojson(indent=2) }}{{ 'a\nb'|indent(4) }}{{ 'x'|center(9) }}{{ [1, 2, 3]|batch(2)|list }}"
    "{{ [3, 1]|sort|map('string')|join('/') }}{{ m|items|list }}{{ -3 // 2 }}{{ 7 % 3 }}{{ 1.5 + 2 }}{{ [1] + [2] }}"
    "{%- endfor -%}{% macro w(t) %}[{{ t }}]{% endmacro %}{{ w('q') ~ w('r') }}"
    "{% if add_generation_prompt %}!{% endif %}"
    "{{ '**%s** %%' % 'a' }}{{ '* %s: %s'|format('a', 'b') }}{{ 'Tools (as of %s, build 20240815)' % 'now' }}"
    "{{ '%-*s|' % (9, 'x') }}{{ '100%% 20240815 %(a)5s' % {'a': 1} }}{{ '{0:>{w}} 20240815'.format('x', w=9) }}"
    "{% set big = namespace(best=99999999) %}{{ big.best }}{{ nothing|default(4294967295) }}"
    "{{ {}.get('max_tokens', 2000000) }}{{ [1, 2].count(99999999) }}{{ dict(a=99999999) }}"
    "{{ ('word ' * 120000)|wordwrap(120)|length }}{{ ('a\nb' * 99999)|indent(4)|length }}"
    "{% for a, b in [(1, 2), (3, 4)] if a < b < 9 %}{{ loop.last }}{{ loop.length }}{{ a }}{% else %}none{% endfor %}"
    "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}"
    "{% set c, d = 1, ('x', 'y') %}{{ d }}{{ c == 1 and d != none and 'x' in d and 'z' not in d }}{{ [1, 2]|sum }}"
    "{{ messages|map(attribute='role')|unique|join(',') }}{{ messages|selectattr('role', 'equalto', 'user')|list }}"
    "{{ messages|groupby('role')|length }}{{ messages == [] }}{{ [[1], [2]]|sum(start=[]) }}{{ 3.14159|round(2) }}"
    "{{ {'b': 1, 'a': (2, 3)}|dictsort }}{{ {('a', 1): 2}[('a', 1)] }}{{ messages|tojson(indent=4) }}{{ range(3) }}"
    "{% filter upper %}x{% endfilter %}{% macro v() %}{{ caller() }}{% endmacro %}{% call v() %}s{% endcall %}"
    "{{ [1, 2]|reverse|list }}{{ '%s' % (none,) }}"
    "{{ nothing is defined }}{{ 'a' is in 'abc' }}{{ 3 is divisibleby 3 }}{{ messages|pprint }}"
    "{{ '<a>b</a>'|striptags }}"
)


def test_honest_template_is_rendered_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    outs = []
    for kind in (ImmutableSandboxedEnvironment, BoundedTemplates):
        monkeypatch.setattr(chat_template_utils, "ImmutableSandboxedEnvironment", kind)
        made = chat_template_utils._cached_compile_jinja_template(HONEST)
        outs.append(made.render(messages=[*ASK, {"role": "assistant", "content": "Hi i"}], add_generation_prompt=True))
    assert outs[0] == outs[1]
    assert len(outs[0]) > 300
