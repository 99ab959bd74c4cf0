"""A conversation, streamed; what a drafter wrote is set in brackets."""

import asyncio

from small import small

from paceline import AsyncLLM, SamplingParams

MESSAGES = [{"role": "user", "content": "Tom has 3 boxes with 12 pencils each. How many pencils has he?"}]


async def main() -> None:
    async with small(AsyncLLM) as llm:
        async for chunk in llm.stream(MESSAGES, SamplingParams(temperature=0.7, seed=1, max_tokens=60)):
            for text, drafter in chunk.pieces:
                print(f"[{text}]" if drafter else text, end="", flush=True)
            if chunk.done:
                print(f"\n{chunk.done.finish_reason}; seed {chunk.done.seed} makes the same text again")


asyncio.run(main())
