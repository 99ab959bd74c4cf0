"""The command line: what it says, what it answers to bad input, and that a session survives."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from paceline.bench import profile
from paceline.cli import app
from paceline.cli.answer import Screen, ShownAnswer, answer
from paceline.cli.chat import ChatSession, history_file, joined
from paceline.cli.partner import Local
from paceline.cli.probe import SAME_TAU_SHARE, HeadProbe, probe_lines, verdict
from paceline.core.params import SamplingParams
from paceline.draft.medusa import Medusa, MedusaConfig
from paceline.engine.budget import memory_of
from paceline.engine.llm import LLM
from paceline.engine.options import Options
from paceline.memory.sums import BudgetShape
from tests.tiny import tiny_checkpoint
from tests.wrong import another_token_after_a_run

COMMANDS = ["generate", "chat", "serve", "bench", "info", "demo"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a target and a draft with the same weights."""
    path = tmp_path_factory.mktemp("pair")
    target = tiny_checkpoint(path / "target", seed=0)
    draft = tiny_checkpoint(path / "draft", seed=0)
    return ["--model", str(target), "--draft", str(draft), "--dtype", "float32", "--memory", "100M"]


@pytest.fixture(scope="module")
def llm(pair: list[str]) -> LLM:
    return LLM(pair[1], pair[3], dtype="float32", memory="100M", max_model_len=96)


def run(*args: str, input: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(args), input=input)


def failure(result: Result) -> str:
    """The one sentence on stderr of a command that met bad input."""
    assert result.exit_code == 2, (result.output, result.exception)
    (line,) = result.stderr.splitlines()
    assert line.startswith("paceline: error: ")
    return line.removeprefix("paceline: error: ")


# -- help ------------------------------------------------------------------------------------------------------------


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom paceline.cli import main\nsys.argv = ['paceline', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'prompt_toolkit', 'rich.progress', 'psutil'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0 and f"Example: paceline {command}" in result.stdout
    assert "--model" in result.stdout and "--memory" in result.stdout


def test_module_and_version() -> None:
    done = subprocess.run([sys.executable, "-m", "paceline", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("paceline 0.")


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "1.5"], "top_p is 1.5"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--drafter", "nonsense"], "Unknown drafter 'nonsense'"),
        (["--drafter", "user"], "needs a function"),
        (["--verifier", "nonsense"], "Unknown verifier"),
        (["--memory", "lots"], "memory is 'lots'"),
        (["--memory", "100"], "give at least"),
        (["--threads", "0"], "threads"),
        (["--device", "nonsense"], "device is 'nonsense'"),
        (["--max-model-len", "100000"], "max_len"),
        (["--device", "mps"], "must be cpu, cuda or cuda:N"),
    ],
)
def test_bad_options(pair: list[str], args: list[str], says: str) -> None:
    assert says in failure(run("generate", "hello", *pair, *args))


def test_a_request_that_the_cache_cannot_hold(pair: list[str]) -> None:
    options = Options(pair[1], pair[3], dtype="float32")
    least = memory_of(options, Path(pair[1]), Path(pair[3])).total(BudgetShape(1, 1, 0, 1))
    assert "lower max_tokens or raise memory" in failure(run("generate", "hello", *pair, "--memory", str(least)))


def test_bad_prompts(pair: list[str], tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"ab\xff")
    assert "byte 2 is 0xff" in failure(run("generate", "--prompt-file", str(path), *pair))
    assert "Standard input is not UTF-8: byte 1" in failure(run("generate", *pair, input=b"a\xff"))
    assert "empty" in failure(run("generate", *pair, input=""))
    assert "empty" in failure(run("generate", "", *pair))
    assert "one of them" in failure(run("generate", "x", "--prompt-file", str(path), *pair))
    assert "cannot be read" in failure(run("generate", "--prompt-file", str(tmp_path / "absent"), *pair))
    assert "context holds 512" in failure(run("generate", "hello " * 600, *pair))


def test_bad_checkpoints(pair: list[str], tmp_path: Path) -> None:
    assert "config.json" in failure(run("generate", "x", "--model", str(tmp_path)))
    assert "config.json" in failure(run("info", "--model", str(tmp_path)))
    other = tiny_checkpoint(tmp_path / "other", vocab=300)
    assert "another vocabulary" in failure(run("generate", "x", *pair[:2], "--draft", str(other), "--drafter", "model"))


def test_bad_bench(pair: list[str], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n{"prompt"', encoding="utf-8")
    assert "line 2 does not parse" in failure(run("bench", "--prompts", str(path), *pair))
    assert "--batch is '1,x'" in failure(run("bench", "--prompts", str(path), "--batch", "1,x", *pair))
    assert "--methods is ''" in failure(run("bench", "--prompts", str(path), "--methods", "", *pair))
    assert "--methods" in failure(run("bench", "--prompts", str(path), "--drafter", "ngram", *pair))
    assert "give --prompts FILE.jsonl, or --profile" in failure(run("bench", *pair))
    assert "must end in .svg, .png, .pdf" in failure(run("bench", *pair, "--plot", "p.gif"))
    assert "has no part in --peers" in failure(run("bench", *pair, "--peers", "p", "--prompts", "q", "--plot", "p.svg"))
    assert "ends in .svg" in failure(run("bench", *pair, "--profile", "--plot", "p.png"))
    assert "separate measurements" in failure(run("bench", *pair, "--profile", "--peers", str(tmp_path)))


# -- generate --------------------------------------------------------------------------------------------------------


def test_every_drafter_writes_the_same_text(pair: list[str]) -> None:
    texts = {
        run("generate", "Tom has", *pair, "--seed", "5", "--max-tokens", "30", "--drafter", drafter).stdout
        for drafter in ("none", "ngram", "model")
    }
    assert len(texts) == 1 and len(texts.pop()) > 10


def test_figures_go_to_stderr(pair: list[str]) -> None:
    loud = run("generate", "Tom has", *pair, "--seed", "5", "--max-tokens", "9")
    quiet = run("generate", "Tom has", *pair, "--seed", "5", "--max-tokens", "9", "--no-stats")
    said = [line for line in quiet.stderr.splitlines() if not line.startswith("measuring this machine")]
    assert loud.stdout == quiet.stdout and not said, "on a busy machine step times are not kept, and measured again"
    assert "9 tokens in" in loud.stderr and "tau" in loud.stderr and "seed 5" in loud.stderr


def test_reasons_and_the_account_are_explained(pair: list[str]) -> None:
    """`auto` begins with a reason and ends with what speculation saved; a named drafter is obeyed, and said to be."""
    options = [*pair, "--seed", "5", "--max-tokens", "30", "--no-stats", "--explain"]
    reasons = [line for line in run("generate", "Tom has", *options).stderr.splitlines() if "measuring" not in line]
    assert reasons[0].startswith(("step 1: draft ", "step 1: plain: ")) and "plain step" not in reasons[0]
    account = re.fullmatch(
        r"speculation (saved|lost) (\d+\.\d+) s(?: of|: (\d+\.\d+) s instead of) the (\d+\.\d+) s that plain decoding "
        "takes",
        reasons[-1],
    )
    assert account and (account[1] == "lost" or float(account[2]) < float(account[4]))
    named = run("generate", "Tom has", *options, "--drafter", "model").stderr
    assert "step 1: asked for: draft model x" in named and "(nothing is timed yet)" in named


def test_json_and_where_the_prompt_comes_from(pair: list[str], tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Tom has\n", encoding="utf-8")
    options = [*pair, "--seed", "5", "--max-tokens", "9", "--json", "--no-stats", "--drafter", "model"]
    given = json.loads(run("generate", "Tom has", *options).stdout)
    piped = json.loads(run("generate", *options, input="Tom has\n").stdout)
    read = json.loads(run("generate", "--prompt-file", str(tmp_path / "prompt.txt"), *options).stdout)
    assert given["token_ids"] == piped["token_ids"] == read["token_ids"] and len(given["token_ids"]) == 9
    assert given["seed"] == 5 and given["tau"] > 1 and given["prompt"] == read["prompt"] == "Tom has"
    plain = json.loads(run("generate", "Tom has", *options, "--no-chat").stdout)
    assert len(plain["prompt_token_ids"]) < len(given["prompt_token_ids"]), "the template adds tokens"


def test_pieces_are_coloured_and_control_characters_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.terminal = screen.color = True
    screen.write("plain\x1b[2J\n")
    assert capsys.readouterr().out == "plain[2J\n"
    screen.terminal = screen.color = False
    screen.write("as \x1b it is", drafted=True)
    assert capsys.readouterr().out == "as \x1b it is"


# -- chat ------------------------------------------------------------------------------------------------------------


def talk(llm: LLM, **wishes: Any) -> ChatSession:
    return ChatSession(
        Local(llm), SamplingParams(**{"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, **wishes}), Screen()
    )


def test_a_session_by_pipe(pair: list[str]) -> None:
    said = "hello\n/stats\n/drafter none\n/drafter nonsense\n/nonsense\n/reset\nhello\n/exit\nnever heard\n"
    result = run("chat", *pair, "--max-tokens", "6", "--temperature", "0", input=said)
    assert result.exit_code == 0
    half = len(result.stdout) // 2
    first, second = result.stdout[:half], result.stdout[half:]
    assert len(first) > 4 and first == second, "after a reset the same message gets the same answer"
    for words in ("session: 1 answers", "drafter: none", "Unknown drafter 'nonsense'", "no command /nonsense"):
        assert words in result.stderr


def test_chat_needs_a_template(pair: list[str], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    bare = tiny_checkpoint(tmp_path / "bare", seed=0)
    tokenizer = AutoTokenizer.from_pretrained(str(bare))
    tokenizer.chat_template = None
    for file in bare.glob("*.jinja"):
        file.unlink()
    tokenizer.save_pretrained(bare)
    assert "no chat template" in failure(run("chat", "--model", str(bare), input="hello\n"))


def test_the_conversation_is_remembered_and_reset(llm: LLM) -> None:
    session = talk(llm)
    session.hear("hello")
    session.hear("again")
    assert [m["role"] for m in session.messages] == ["user", "assistant"] * 2
    assert session.messages[1]["content"] == session.answers[0].result.text
    session.hear("/reset")
    assert session.messages == []


def test_a_full_context_costs_the_message_only(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    session = talk(llm)
    session.hear("hello")
    before = list(session.messages)
    session.hear("many words " * 40)
    assert session.messages == before
    assert "the context holds 96" in capsys.readouterr().err
    session.hear("again")
    assert len(session.messages) == len(before) + 2


def test_ctrl_c_stops_an_answer_and_keeps_the_session(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    session = talk(llm, max_tokens=40)
    handler = signal.getsignal(signal.SIGINT)
    session.screen.show = press_after(3)  # type: ignore[method-assign]
    session.hear("hello")
    assert signal.getsignal(signal.SIGINT) is handler
    stopped = session.answers[0]
    assert stopped.interrupted and 3 <= len(stopped.result.token_ids) < 40
    assert session.messages[-1] == {"role": "assistant", "content": stopped.result.text}
    assert "(stopped)" in capsys.readouterr().err
    assert not llm.engine.busy
    llm.engine.cache.check_integrity()
    session.screen = Screen()
    session.hear("again")
    assert not session.answers[1].interrupted


def press_after(chunks: int) -> Callable[[object], None]:
    seen: list[object] = []

    def show(chunk: object) -> None:
        seen.append(chunk)
        if len(seen) == chunks:
            signal.raise_signal(signal.SIGINT)

    return show


def test_the_second_ctrl_c_is_not_held_back(llm: LLM) -> None:
    def show(chunk: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        answer(llm, [5, 6, 7], SamplingParams(max_tokens=20), show)
    assert not llm.engine.busy


def test_drafter_is_changed_and_refused_by_name(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    session = talk(llm)
    for line in ("/drafter", "/drafter ngram", "/drafter user"):
        session.hear(line)
    told = capsys.readouterr().err
    assert "drafter: auto (of auto, del, dyspec, " in told and "topk)" in told, (
        "user cannot serve here and is not offered"
    )
    assert "drafter: ngram" in told and "needs a function" in told
    assert session.params.drafter == "ngram"


def test_several_lines() -> None:
    said = iter(["plain", "one\\", "two\\", "three", '"""', "a", "", 'b"""', '"""c"""'])
    ask = joined(lambda: next(said))
    assert [ask() for _ in range(4)] == ["plain", "one\ntwo\nthree", "a\n\nb", "c"]


def test_system_set_save_and_load(llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session, file = talk(llm), tmp_path / "talk.json"
    for line in ("/system Be brief.", "/set temperature 0.5", '/set stop ["x"]', "/set seed 3", "hello"):
        session.hear(line)
    assert session.params.temperature == 0.5 and session.params.stops == ("x",) and session.params.seed == 3
    assert [m["role"] for m in session.messages] == ["system", "user", "assistant"]
    session.hear(f"/save {file}")
    session.hear("/reset")
    assert session.messages == [{"role": "system", "content": "Be brief."}]
    other = talk(llm)
    other.hear(f"/load {file}")
    assert len(other.messages) == 3 and other.system == "Be brief."
    other.hear('/system ""')
    assert [m["role"] for m in other.messages] == ["user", "assistant"]
    session.hear("/set temperature")
    assert session.params.temperature is None
    capsys.readouterr()
    for line in ("/set colour 1", "/set top_p 7", "/save", f"/load {tmp_path / 'none'}", "/load " + __file__):
        session.hear(line)
    errors = capsys.readouterr().err.splitlines()
    for told, words in zip(
        errors,
        ("Unknown sampling parameter", "top_p is 7", "needs the name", "cannot be read", "is not a conversation"),
    ):
        assert words in told
    assert session.params.seed == 3


def test_history_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "paceline" / "history"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert history_file() is None


# -- info, bench, demo -----------------------------------------------------------------------------------------------


def test_info(pair: list[str], tmp_path: Path) -> None:
    said = json.loads(run("info", *pair, "--json").stdout)
    model = said["model"]
    assert (model["family"], model["layers"], model["vocabulary"], model["context"]) == ("llama", 2, 320, 512)
    assert model["parameters"] == 2 * 320 * 32 + 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32) + 32
    assert (
        model["weight_bytes"] >= 4 * (model["parameters"] + 320 * 32)
        and model["kv_bytes_per_token"] == 2 * 2 * 8 * 2 * 4
    )
    assert model["weight_bytes"] < said["least_memory"] < 100 << 20
    assert said["longest_context"] == model["context"]
    less = json.loads(run("info", *pair, "--memory", str(said["least_memory"]), "--json").stdout)
    assert less["longest_context"] == 16
    fits = {entry["drafter"]: entry["exact"] for entry in said["drafters"]}
    assert fits["none"] is fits["ngram"] is fits["model"] is None and "function" in fits["user"]
    other = tiny_checkpoint(tmp_path / "other", vocab=300)
    said = json.loads(run("info", *pair[:2], "--draft", str(other), "--json").stdout)
    assert "another vocabulary (300 entries)" in said["draft_refused"]
    assert "needs a draft model" in {entry["drafter"]: entry["exact"] for entry in said["drafters"]}["model"]
    table = run("info", *pair).stdout
    assert "K/V cache" in table and "ngram" in table


def test_info_probes_a_head(pair: list[str], tmp_path: Path) -> None:
    """As served and in a process without native code: the same drafts. A head of no training keeps next to nothing,
    which is said; so is one that native code computes wrongly."""
    spec = {"width": 32, "vocab": 320, "max_len": 512}
    Medusa(MedusaConfig(**spec, depth=2)).save(tmp_path / "head")
    result = run("info", *pair[:2], "--draft", str(tmp_path / "head"), "--dtype", "float32", "--probe", "--json")
    found = json.loads(result.stdout)["probe"]
    served, alone = (HeadProbe(**found[name]) for name in ("served", "pytorch"))
    assert served.tau == pytest.approx(alone.tau, rel=SAME_TAU_SHARE) and served.kept and len(served.texts) == 4
    assert probe_lines(served, alone)[-1] == verdict(served, alone)
    assert "next to nothing" in verdict(HeadProbe(1.0, (), ()), HeadProbe(1.01, (), ()))
    assert "computed wrongly" in verdict(HeadProbe(1.3, (), ()), HeadProbe(1.9, (), ()))
    assert "agree" in verdict(HeadProbe(1.92, (), ()), HeadProbe(1.97, (), ()))
    for given in (pair, pair[:2]):
        refused = run("info", *given, "--probe")
        assert refused.exit_code and "needs a head" in refused.output


def test_bench_prints_a_table_and_writes_json(pair: list[str], tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "Tom has"}\n', encoding="utf-8")
    out = tmp_path / "out.json"
    result = run(
        "bench", *pair, "--prompts", str(tmp_path / "p.jsonl"), "--methods", "none,ngram", "--batch", "1",
        "--max-tokens", "6", "--repeat", "1", "--json", str(out),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "identical" in result.stdout and "ngram" in result.stdout and "of the limit" in result.stdout
    assert [row["method"] for row in json.loads(out.read_text())["rows"]] == ["none", "ngram"]


@pytest.mark.parametrize("prompts", [False, True])
def test_bench_profiles_a_step(prompts: bool, pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.bench.profile.measure", partial(profile.measure, rounds=1))
    (tmp_path / "p.jsonl").write_text('{"prompt": "Tom has"}\n', encoding="utf-8")
    short = ["--prompts", str(tmp_path / "p.jsonl"), "--methods", "none", "--max-tokens", "4", "--repeat", "1"]
    out, plot = tmp_path / "out.json", tmp_path / "plot.svg"
    result = run("bench", *pair, "--profile", "--json", str(out), "--plot", str(plot), *(short if prompts else ()))
    assert result.exit_code == 0, result.output
    assert "linear layers / floor" in result.stdout and ("of the limit" in result.stdout) is prompts
    written = json.loads(out.read_text())
    assert {"machine", "versions", "args", "profile"} <= written.keys() and ("rows" in written) is prompts
    assert [it["rows"] for it in written["profile"]["steps"]] == [1, 2, 4, 8, 16, 32, 64]
    assert plot.read_text().startswith("<svg ")


def test_demo(pair: list[str]) -> None:
    result = run("demo", *pair, "--max-tokens", "24")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("identical") == 3 and "often wrong" in result.stdout


def test_demo_fails_when_a_text_differs(pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    another_token_after_a_run(monkeypatch)
    result = run("demo", *pair, "--max-tokens", "24")
    assert result.exit_code == 1 and "DIFFERENT" in result.stdout


def test_an_answer_knows_its_figures(llm: LLM) -> None:
    done: ShownAnswer = answer(llm, [5, 6, 7], SamplingParams(max_tokens=6, seed=1, ignore_eos=True, drafter="model"))
    figures = done.figures()
    assert figures["tokens"] == 6 and figures["tokens_per_second"] == pytest.approx(6 / done.seconds)
    assert 1 <= figures["tau"] <= 6 and 0 <= figures["acceptance_rate"] <= 1
