"""The thinnest path: both end points, streamed and not, give the offline text."""

from openai import OpenAI

from paceline import LLM, SamplingParams

PROMPT = "Tom has 3 apples and buys 4 more."
MESSAGES = [{"role": "user", "content": PROMPT}]


def test_completions_give_the_offline_text(client: OpenAI, llm: LLM) -> None:
    want = llm.generate(PROMPT, SamplingParams(max_tokens=24, seed=7), progress=False)[0]
    wish = {"model": "demo", "prompt": PROMPT, "max_tokens": 24, "seed": 7}
    whole = client.completions.create(**wish)
    assert whole.choices[0].text == want.text
    assert whole.usage.completion_tokens == len(want.token_ids)
    stream = client.completions.create(**wish, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks[:-1]) == want.text
    assert chunks[-1].usage.completion_tokens == len(want.token_ids)


def test_chat_gives_the_offline_text(client: OpenAI, llm: LLM) -> None:
    want = llm.chat(MESSAGES, SamplingParams(max_tokens=24, seed=7), progress=False)[0]
    wish = {"model": "demo", "messages": MESSAGES, "max_tokens": 24, "seed": 7}
    assert client.chat.completions.create(**wish).choices[0].message.content == want.text
    chunks = list(client.chat.completions.create(**wish, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == want.text
