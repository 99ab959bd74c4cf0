"""`paceline generate`."""

import json
import sys
from pathlib import Path

import typer

from paceline.bench.prompts import decode, encode, read_text
from paceline.cli.answer import Screen, answer, measure, note
from paceline.cli.options import INTERRUPTED, EngineArgs, SamplingArgs
from paceline.core.errors import InputError
from paceline.core.system import starting


def generate(
    prompt: str | None,
    prompt_file: Path | None,
    engine: EngineArgs,
    sampling: SamplingArgs,
    *,
    chat: bool | None,
    stats: bool,
    color: bool,
    as_json: bool,
    explain: bool = False,
) -> None:
    """Complete one prompt; the arguments are the command's."""
    text, params = find_prompt(prompt, prompt_file), sampling.params()
    with starting():
        from paceline.engine.llm import LLM

        llm, screen = LLM(**engine.arguments(), late_weights=True), Screen(color)
    ids, reasons = encode(llm.text, text, chat), None
    if explain:
        from paceline.cli.explain import Reasons

        llm.engine.recorder = reasons = Reasons()
    done = answer(llm, ids, params, None if as_json else screen.show)
    if as_json:
        result = done.result
        entry = {"prompt": text, "prompt_token_ids": ids, "text": result.text, "token_ids": result.token_ids,
                 "finish_reason": result.finish_reason, "seed": result.seed, **done.figures()}  # fmt: skip
        typer.echo(json.dumps(entry, ensure_ascii=False))
    elif not done.result.text.endswith("\n"):
        screen.write("\n")
    if reasons:
        for line in (*reasons.lines(), llm.engine.desk.totals.saved_words):
            note(line)
    if stats:
        note(done.line())
    if done.interrupted:
        raise typer.Exit(INTERRUPTED)
    measure(llm)
    llm.close()


def find_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt from the argument, the file or standard input. InputError when there is none, two, or an empty one."""
    if prompt is not None and prompt_file is not None:
        raise InputError("A prompt and --prompt-file were both given; give one of them.")
    if prompt_file is not None:
        prompt = read_text(prompt_file).removesuffix("\n")
    elif prompt is None:
        if sys.stdin.isatty():
            raise InputError("There is no prompt; give it as an argument, with --prompt-file, or on standard input.")
        prompt = decode(sys.stdin.buffer.read(), "Standard input").removesuffix("\n")
    if not prompt:
        raise InputError("The prompt is empty; give at least one character.")
    return prompt
