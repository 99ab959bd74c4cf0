"""The `paceline` command. Everything heavy is imported by the command that needs it, so that help is quick."""

import os
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import cluster, load, train, zoo
from paceline.cli.options import EngineArgs, SamplingArgs, command, option
from paceline.cli.route import RouteArgs, Shell
from paceline.cli.serve import ServingArgs, check_environment
from paceline.cli.simulate import ChangeArgs
from paceline.serve.settings import Settings

app = typer.Typer(
    name="paceline",
    help=(
        "Run large language models faster, with the same text.\n\n"
        "Paceline lets a cheap drafter guess the next tokens, and the model check all guesses in one pass. What you "
        "get is what the model alone would have written, token for token; guessing changes the time it takes, never "
        "the text.\n\n"
        "Start with [bold]paceline demo[/bold]. [bold]paceline COMMAND --help[/bold] explains a command and shows an "
        "example."
    ),
    epilog="Exit codes: 0 done, 1 a text differed (bench, demo), 2 bad input, 130 interrupted.",
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and end.")] = False) -> None:
    if version:
        from paceline import __version__

        typer.echo(f"paceline {__version__}")
        raise typer.Exit
    check_environment(os.environ)


@app.command(epilog="Example: paceline generate 'Why is the sky blue?' --model Qwen/Qwen2.5-0.5B-Instruct --seed 1")
@command
def generate(
    prompt: Annotated[str | None, typer.Argument(help="Default: --prompt-file, else standard input.")] = None,
    *,
    engine: EngineArgs,
    sampling: SamplingArgs,
    prompt_file: Annotated[Path | None, option("Read the prompt from a UTF-8 text file.", "Input and output")] = None,
    chat: Annotated[
        bool | None,
        option("Send the prompt through the chat template. Default: if the model has one.", "Input and output",
               "--chat/--no-chat"),
    ] = None,
    stats: Annotated[bool, option("Figures at the end, on stderr.", "Input and output", "--stats/--no-stats")] = True,
    color: Annotated[
        bool, option("Colour the drafted and accepted tokens.", "Input and output", "--color/--no-color")
    ] = True,
    json: Annotated[bool, option("One JSON object instead of text.", "Input and output", "--json")] = False,
    explain: Annotated[
        bool, option("Reasons of the planner's decisions, on stderr.", "Input and output", "--explain")
    ] = False,
) -> None:  # fmt: skip
    """Complete one prompt, streamed to the terminal.

    Tokens that were drafted and accepted appear in another colour. The same seed gives the same text, with any drafter.
    Of a prompt from a file or standard input one newline at the end is dropped.
    """
    from paceline.cli.generate import generate

    generate(prompt, prompt_file, engine, sampling, chat=chat, stats=stats, color=color, as_json=json, explain=explain)


@app.command(epilog="Example: paceline chat --model meta-llama/Llama-3.2-3B-Instruct --draft meta-llama/Llama-3.2-1B")
@command
def chat(
    engine: EngineArgs,
    sampling: SamplingArgs,
    system: Annotated[str | None, option("A system message to begin with.", "Input and output")] = None,
    url: Annotated[
        str | None, option("Talk with a running server, such as http://localhost:8000.", "Input and output")
    ] = None,
    api_key: Annotated[str | None, option("Its key. Default: $PACELINE_API_KEY.", "Input and output")] = None,
    color: Annotated[
        bool, option("Colour the drafted and accepted tokens.", "Input and output", "--color/--no-color")
    ] = True,
) -> None:
    """Talk with a model.

    Ctrl-C stops an answer and keeps the session; Ctrl-D or /exit ends it. /reset starts over, /system TEXT sets the
    system prompt, /set NAME VALUE a sampling parameter, /drafter NAME the drafter, /stats shows figures, /save FILE and
    /load FILE keep the conversation. A line that ends with a backslash goes on in the next, three double quotes begin
    and end several lines, and so does Alt+Enter. Without a terminal it reads messages from standard input.
    """
    from paceline.cli.chat import chat

    chat(engine, sampling, system, color=color, url=url, key=api_key)


bench_app = typer.Typer(
    invoke_without_command=True,
    subcommand_metavar="[COMMAND [ARGS]...]",
    epilog="Example: paceline bench --prompts gsm8k_test.jsonl --methods all --batch 1,8 --json out.json",
)
app.add_typer(bench_app, name="bench")
bench_app.command(epilog=load.SERVE_EXAMPLE)(load.serve)
bench_app.command(epilog=load.RECORD_EXAMPLE)(load.record)


@bench_app.callback()
@command
def bench(
    *,
    context: typer.Context,
    engine: EngineArgs,
    prompts: Annotated[
        Path | None,
        option("JSON lines with prompt (HumanEval, yours), question (GSM8K) or turns (Spec-Bench).", "Benchmark"),
    ] = None,
    methods: Annotated[
        str, option("Drafters, such as none,ngram; all: every one that can serve.", "Benchmark", show_default=True)
    ] = "all",
    batch: Annotated[
        str, option("Requests submitted together, such as 1,8.", "Benchmark", show_default=True)
    ] = "1",
    temperature: Annotated[
        str, option("0 is greedy; several such as 0,1. Seeds are fixed per prompt.", "Benchmark", show_default=True)
    ] = "0",
    max_tokens: Annotated[int, option("Maximum tokens per answer.", "Benchmark", show_default=True)] = 128,
    num_prompts: Annotated[int, option("Number of prompts to use.", "Benchmark", show_default=True)] = 20,
    repeat: Annotated[int, option("Number of repeats; figures are medians.", "Benchmark", show_default=True)] = 3,
    seed: Annotated[int, option("Seed of the first prompt; the next adds 1.", "Benchmark", show_default=True)] = 0,
    synthetic_acceptance: Annotated[
        float | None, option("Add user, a draft whose tokens are right with this chance, such as 0.8.", "Benchmark")
    ] = None,
    profile: Annotated[
        bool, option("Time one step by part, for 1 to 64 rows; needs no prompts.", "Benchmark", "--profile")
    ] = False,
    kernels: Annotated[
        bool, option("Time the kernels of quantised weights instead: cycles and GB/s.", "Benchmark", "--kernels")
    ] = False,
    plot: Annotated[Path | None, option("Draw the methods, or the profile, to this file.", "Benchmark")] = None,
    perplexity: Annotated[
        bool, option("Measure the quality instead: perplexity, also without --quantize.", "Benchmark", "--perplexity")
    ] = False,
    json: Annotated[Path | None, option("Write everything to this file.", "Benchmark")] = None,
    peers: Annotated[
        Path | None, option("Compare with the other tools that bench/peers/setup.sh put into this folder.", "Benchmark")
    ] = None,
) -> None:  # fmt: skip
    """Compare drafters on your prompts: speed, and whether the text stays the same.

    [bold]paceline bench serve[/bold] measures a running server under load instead; its options follow its name.

    All methods run in turns on one engine and are compared with plain decoding (none) in the same run. EOS is
    respected, the chat template applied where there is one, and other sampling settings are the checkpoint's.

    Columns: decode/s is tokens/s without the prompt's part; tau the tokens per pass of the model; kept the share of
    drafted tokens that were accepted; ratio the speed-up over none, and its range over the repeats. A text is
    identical when its tokens equal plain decoding's or first differ at a near-tie, where rounding decides (ties counts
    them); distribution: this verifier keeps only the distribution. Exit code 1 if a text truly differed.

    --synthetic-acceptance says what a draft would bring that is right so often and costs nothing: it knows plain
    decoding's text. The rest of the step is real, so it serves for models without a draft, random weights among them.

    --profile shows the milliseconds of each part of a step, at the first of the temperatures.

    --kernels needs no model: it times the products of every quantised type with 1 to 16 rows, in the caches in cycles,
    and from memory.

    --perplexity measures nothing else. It is that of the reference answers, given their prompts, where the lines have
    answer (GSM8K) or canonical_solution (HumanEval), else that of the prompts; with --quantize also that of the model
    without it, for comparison. Texts are cut at the context.

    With --peers the same prompts go, greedily, through Paceline at its defaults and every tool that was set up: plain,
    with a draft model and with prompt lookup, in bf16 and 8-bit. ratio there is Paceline over the tool, in that row's
    setting; same counts the answers equal to Paceline's plain ones.
    """
    from paceline.cli.bench import alone, bench, check, compare, needed, quality, time_kernels, unused

    if context.invoked_subcommand is not None:
        unused(context, context.invoked_subcommand)
        return
    if kernels:
        time_kernels(context, json)
        return
    if perplexity:
        alone(context)
        quality(engine, prompts, num_prompts, json)
        return
    check(profile, plot, peers, prompts, synthetic_acceptance is not None)
    if peers is not None:
        compare(
            engine, needed(prompts), peers, methods, batch, temperature, json,
            max_tokens=max_tokens, num_prompts=num_prompts, repeat=repeat,
        )  # fmt: skip
        return
    bench(
        engine, prompts, methods, batch, temperature, json,
        max_tokens=max_tokens, num_prompts=num_prompts, repeat=repeat, seed=seed,
        synthetic_acceptance=synthetic_acceptance, profile=profile, plot=plot,
    )  # fmt: skip


@app.command(epilog="Example: paceline info --model Qwen/Qwen2.5-7B --draft Qwen/Qwen2.5-0.5B")
@command
def info(
    *,
    engine: EngineArgs,
    json: Annotated[bool, option("One JSON object instead of tables.", "Input and output", "--json")] = False,
    probe: Annotated[
        bool, option("Draft for some built-in prompts with the head of --draft.", "Input and output")
    ] = False,
) -> None:
    """Show what a checkpoint is, what it costs, and which drafters fit it.

    Reads the config and the headers of the weights, not the weights; with [bold]--probe[/bold] it loads them, and says
    how many tokens of the head are kept, as it is served and by PyTorch alone.
    """
    from paceline.cli.info import info

    info(engine, as_json=json, with_probe=probe)


@app.command(epilog="Example: paceline pull smollm2")
@command
def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of paceline list, or a hub id.")],
    *,
    draft: Annotated[
        bool, option("Also its draft.", "Model and engine", "--draft/--no-draft", show_default=True)
    ] = True,
    token: Annotated[str | None, option("Access token of the hub.", "Model and engine")] = None,
) -> None:
    """Download a model.

    NAME is a name of the catalogue ([bold]paceline list[/bold]), or owner/name or owner/name:FILE.gguf of the hub. An
    interrupted download resumes when it is started again. Prints the path of the model."""
    from paceline.cli.models import pull

    pull(name, draft=draft, token=token)


@app.command(name="list")
@command
def list_models() -> None:
    """Show models that can be pulled by name, and what is on this machine."""
    from paceline.cli.models import listed

    listed()


@app.command(epilog="Example: paceline rm smollm2")
@command
def rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As paceline list shows it; packed: all packed weights.")],
) -> None:
    """Remove a pulled model and its packed weights."""
    from paceline.cli.models import remove

    remove(name)


@app.command(epilog="Example: paceline pack --model model-Q4_K_M.gguf --quantize int8")
@command
def pack(engine: EngineArgs) -> None:
    """Pack a model's weights for this machine now, so that the next start only reads them.

    Loading does this by itself for large models. Prints the file, its size, the time and the most memory taken.
    """
    from paceline.cli.models import pack

    pack(engine)


@app.command(epilog="Example: paceline index notes/ --out notes.index --encoder path/to/all-MiniLM-L6-v2")
@command
def index(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="With .txt, .md, .rst and .html files.")],
    out: Annotated[Path, option("Write the index to this folder.", "Input and output", "--out", "-o")],
    *,
    encoder: Annotated[
        Path | None,
        option("A sentence encoder in Hugging Face layout. Default: none, words alone.", "Model and engine"),
    ] = None,
    words: Annotated[int, option("Words of a passage.", "Input and output", show_default=True)] = 100,
    narrow: Annotated[
        bool, option("Compute the vectors of passages in bfloat16, which is faster on most machines.",
                     "Model and engine", "--narrow/--no-narrow", show_default=True)
    ] = False,
    static: Annotated[
        bool, option("Vectors are means of the encoder's input embeddings, without its layers: for millions of them.",
                     "Model and engine", "--static/--no-static", show_default=True)
    ] = False,
    model: Annotated[
        str | None,
        option("Make a datastore of this model in place of an index (KNN-LM); OUT is then a file NAME.npz.",
               "Model and engine"),
    ] = None,
) -> None:  # fmt: skip
    """Build an index over a folder of texts, from which answers can retrieve passages while they are written.

    With an encoder it has dense retrievers, exact and (with paceline[rag]) approximate; with paceline[rag] BM25. An
    interrupted build resumes when the same command is given again."""
    from paceline.cli.index import index

    index(folder, out, encoder, words, narrow, static, model)


@app.command(
    epilog="Example: paceline reason 'How many is 3 times 17 less 4?' --model Qwen/Qwen2.5-1.5B-Instruct "
    "--small Qwen/Qwen2.5-0.5B-Instruct --set tau=7"
)
@command
def reason(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What is to be answered.")],
    *,
    engine: EngineArgs,
    sampling: SamplingArgs,
    policy: Annotated[
        str, option("steps, mentor, parallel, retrieval or neighbours.", "Policy", show_default=True)
    ] = "steps",
    set: Annotated[
        list[str] | None, option("A setting of the policy, such as tau=7; may be repeated.", "Policy")
    ] = None,
    small: Annotated[str | None, option("The second, small model of steps and mentor.", "Policy")] = None,
    index: Annotated[Path | None, option("Folder that paceline index made, for retrieval.", "Policy")] = None,
    datastore: Annotated[
        Path | None, option("File that paceline index --model made, for neighbours.", "Policy")
    ] = None,
    color: Annotated[
        bool, option("Colour what others than the base model wrote.", "Input and output", "--color/--no-color")
    ] = True,
    json: Annotated[bool, option("One JSON object, with the policy's report.", "Input and output", "--json")] = False,
) -> None:
    """Answer a question with speculation above tokens: by steps, with a mentor, in branches, or with retrieval.

    The text appears as it is accepted; Ctrl-C ends it where it stands. At the end standard error says how many
    proposals were accepted and what that saved. docs/reasoning.md, docs/parallel.md and docs/retrieval.md have the
    settings.
    """
    from paceline.cli.reason import Sources, reason, values

    reason(question, policy, engine, sampling, Sources(small, index, datastore, values(set or [])),
           color=color, as_json=json)  # fmt: skip


@app.command(epilog="Example: paceline experts path/to/mixture notes.txt --processes 2 --out routes.table")
@command
def experts(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A mixture of experts: directory, file or hub id.")],
    text: Annotated[list[Path], typer.Argument(metavar="TEXT...", help="UTF-8 files with text as it will be served.")],
    out: Annotated[Path, option("Write the table to this file.", "Input and output", "--out", "-o")],
    *,
    processes: Annotated[int, option("Processes that will share the experts.", "Experts", show_default=True)] = 2,
    capacity: Annotated[
        float,
        option("Maximum rows of one process in a pass, as a multiple of its fair share.", "Experts", show_default=True),
    ] = 1.25,
    tokens: Annotated[int, option("Maximum number of tokens to read.", "Experts", show_default=True)] = 50_000,
) -> None:
    """Record which experts the tokens of a text use, and make a table of routes for serve --expert-parallel.

    Experts that the same tokens use are placed in one process, and tokens go where theirs are expected. A fifth of the
    text is kept apart; what is printed was measured on it. A table changes where rows are computed, never the text.
    """
    from paceline.cli.experts import experts

    experts(model, text, out, processes, capacity, tokens)


@app.command(epilog="Example: paceline demo")
@command
def demo(
    engine: EngineArgs,
    max_tokens: Annotated[int, option("Length of the answer.", "Input and output", show_default=True)] = 160,
    color: Annotated[
        bool, option("Colour the drafted and accepted tokens.", "Input and output", "--color/--no-color")
    ] = True,
) -> None:
    """Answer one question three times: plainly, with prompt lookup, and as the planner chooses.

    Uses SmolLM2-135M (100 MB, downloaded once); without a network the tiny pair of models that comes with Paceline,
    where the third answer has its draft model. Exit code 1 if the three texts differ.
    """
    from paceline.cli.demo import demo

    demo(engine, max_tokens, color=color)


@app.command(epilog="Example: paceline serve Qwen/Qwen2.5-7B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct --port 8000")
@command
def serve(
    name: Annotated[str | None, typer.Argument(metavar="MODEL", help="As --model. Default: the demo pair.")] = None,
    *,
    context: typer.Context,
    engine: ServingArgs,
    server: Settings,
    config: Annotated[Path | None, option("TOML file with settings, named as here with _ for -.", "HTTP")] = None,
) -> None:
    """Serve a model to many clients over an OpenAI-compatible HTTP API.

    Speculation shows in nothing but speed: the answers are those of the model alone. Every option can also be an
    environment variable, PACELINE_PORT for --port, or a line of the file given by --config; the command line wins over
    the environment, and that over the file. SIGTERM ends the server once running requests are answered.
    """
    from paceline.cli.serve import serve

    serve(context, name, engine, server, config)


@app.command(epilog="Example: paceline ps")
@command
def ps(
    url: Annotated[str | None, typer.Argument(metavar="URL", help="A server. Default: all on this machine.")] = None,
) -> None:
    """The models of running servers: state, context, address and process.

    Without URL, the servers of this machine whose processes this user may look at. Exit code 1 where there is none.
    """
    from paceline.cli.ps import ps

    ps(url)


@app.command(epilog="Example: paceline simulate decisions.jsonl --rate-scale 2")
@command
def simulate(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Written by paceline serve --decision-log.")],
    *,
    change: ChangeArgs,
    replay: Annotated[bool, option("Only check that the log replays.", "Input and output", "--replay")] = False,
    output: Annotated[Path | None, option("Write the simulated decisions to this log.", "Input and output")] = None,
) -> None:
    """Run the requests of a decision log through the engine's own planner, scheduler and cache, without its models.

    Time is virtual: a step takes what the recorded engine's table predicts, and drafts are kept as often as they were.
    Prints throughput and latencies next to the recorded ones. With --replay: do the same decisions follow from the same
    events? Exit code 1 if they do not.
    """
    from paceline.cli.simulate import simulate

    simulate(log, change, replay=replay, output=output)


app.add_typer(train.app, name="train")
app.add_typer(cluster.app, name="cluster")
app.add_typer(zoo.app, name="zoo")


@app.command(epilog="Example: paceline route http://127.0.0.1:8000 http://127.0.0.1:8001 --planner hexgen --port 8100")
@command
def route(
    engines: Annotated[list[str], typer.Argument(metavar="URL...", help="Addresses of the engines' servers.")],
    *,
    args: RouteArgs,
    shell: Shell,  # type: ignore[valid-type]
    port: Annotated[int, option("Listen on this port.", "HTTP", show_default=True)] = 8100,
) -> None:
    """Put one address in front of several servers, and plan the calls of workflows with deadlines over them.

    A request may have a field workflow: {"id", "step", "deadline_s", "expected": [STEP, ...], "last"}; the others go to
    the engine unchanged. When an engine is lost its calls go to others; each call is answered once.
    """
    from paceline.cli.route import route

    route(engines, args, shell, port)


def main() -> None:
    """Entry point of the `paceline` script."""
    app()
