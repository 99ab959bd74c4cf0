"""Which model writes its calls and its reasoning how."""

import pytest

from paceline.core.errors import RefusalError
from paceline.serve.parser import AnswerParser, Content
from paceline.serve.syntax import SYNTAXES, opens_reasoning, syntax_of

QWEN = '<tools>...</tools> return <tool_call>\n{\\"name\\": <function-name>}\n</tool_call>'
TEMPLATES = [
    (QWEN, "hermes"),
    ("{{ '[TOOL_CALLS]' }}", "mistral"),
    ('{{ "<|python_tag|>" }} Respond in the format {"name": function name, "parameters": ...}', "llama"),
    ('Respond in the format {"name": function name, "parameters": dictionary}.', "llama"),
    ("{{ '<|tool|>' + message['tools'] }}", "list"),
    ('answer with [{"name": ...}]', "list"),
    (QWEN + " <function=name>", None),
    ("{{ '[TOOL_CALLS]' }}{{ '[ARGS]' }}", None),
    ('{{ {"name": "f", "parameters": {}} | tojson }} <tool_calls_begin>', None),
    ("{% for m in messages %}{{ m['content'] }}{% endfor %}", None),
]


@pytest.mark.parametrize(("template", "name"), TEMPLATES)
def test_the_template_tells_the_syntax(template: str, name: str | None) -> None:
    syntax = syntax_of(template)
    assert (syntax and syntax.name) == name
    if name is None:
        with pytest.raises(RefusalError, match="none of the tool call syntaxes hermes, mistral, llama, list"):
            AnswerParser.for_model(template, tools=True, reasoning=False)
    else:
        AnswerParser.for_model(template, tools=True, reasoning=False)
    assert AnswerParser.for_model(template, tools=False, reasoning=False).feed("<tool_call>") == [
        Content("<tool_call>")
    ]


HYBRID = (
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)


def test_a_template_may_open_the_reasoning() -> None:
    assert opens_reasoning("{% if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}")
    assert not opens_reasoning(HYBRID)
    assert not opens_reasoning("{{ '<think>' }}{% if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}")


def test_ids() -> None:
    """Mistral's templates refuse ids that are not nine letters and digits."""
    for syntax in SYNTAXES:
        one, other = syntax.new_id(), syntax.new_id()
        assert one != other
        assert len(one) == 9 and one.isalnum() if syntax.name == "mistral" else one.startswith("call_")
