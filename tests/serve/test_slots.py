"""`/slots` over HTTP, and what a conversation leaves on disk."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from paceline import AsyncLLM
from paceline.engine import block_files
from paceline.serve.settings import Settings
from tests.serve.conftest import DEMO, running

STORY = "Tom has 3 apples and buys 4 more. " * 6


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_files, "DISK_FREE_BYTES", 0)


@pytest.fixture
def where(tmp_path: Path) -> Iterator[str]:
    llm = AsyncLLM(**DEMO, drafter="none", max_requests=4, kv_disk=f"{tmp_path}/kv:64M")
    with running(llm, Settings()) as address:
        yield address
    llm.close()


def ask(url: str, path: str, body: dict[str, Any] | None = None, method: str = "POST", **headers: str) -> Any:
    """(status, answer)"""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def complete(url: str, prompt: str, **headers: str) -> tuple[str, int]:
    """(text, cached tokens)"""
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
    status, answer = ask(url, "/v1/completions", body, **headers)
    assert status == 200, answer
    details = answer["usage"].get("prompt_tokens_details") or {}
    return answer["choices"][0]["text"], details.get("cached_tokens", 0)


def test_save_erase_restore(where: str) -> None:
    text, cached = complete(where, STORY)
    assert cached == 0
    status, slots = ask(where, "/slots", method="GET")
    assert status == 200 and [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert slots[0]["n_tokens"] > 32 and not slots[0]["is_processing"] and slots[0]["next_token"]["n_decoded"] == 8
    status, saved = ask(where, "/slots/0?action=save", {"filename": "talk.bin"})
    assert status == 200 and saved["n_saved"] >= 32 and saved["n_written"] > 0 and saved["timings"]["save_ms"] > 0
    status, erased = ask(where, "/slots/0?action=erase")
    assert (status, erased["id_slot"]) == (200, 0) and erased["n_erased"] == slots[0]["n_tokens"]
    assert ask(where, "/slots", method="GET")[1][0]["n_tokens"] == 0
    status, restored = ask(where, "/slots/2?action=restore", {"filename": "talk.bin"})
    assert status == 200 and restored["n_restored"] == saved["n_saved"] and restored["n_read"] > 0
    assert ask(where, "/slots", method="GET")[1][2]["n_tokens"] == saved["n_saved"]
    again, cached = complete(where, STORY)
    assert again == text and cached >= 32
    assert ask(where, "/slots", method="GET")[1][2]["next_token"]["n_decoded"] == 8, "it goes on in its slot"


def test_a_saved_slot_outlives_the_server(where: str, tmp_path: Path) -> None:
    text, _ = complete(where, STORY)
    assert ask(where, "/slots/0?action=save", {"filename": "a"})[0] == 200
    llm = AsyncLLM(**DEMO, drafter="none", kv_disk=f"{tmp_path}/kv:64M")
    with running(llm, Settings()) as other:
        status, restored = ask(other, "/slots/0?action=restore", {"filename": "a"})
        assert status == 200 and restored["n_restored"] >= 32
        assert complete(other, STORY) == (text, complete(where, STORY)[1])
    llm.close()


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/slots/9?action=save", {"filename": "a"}, 400, "no slot 9"),
        ("/slots/-1?action=save", {"filename": "a"}, 400, "no slot -1"),
        ("/slots/1?action=save", {"filename": "a"}, 400, "is empty"),
        ("/slots/0?action=save", {}, 400, "filename is missing"),
        ("/slots/0?action=save", None, 400, "filename is missing"),
        ("/slots/0?action=save", {"filename": "../a"}, 400, "plain name"),
        ("/slots/0?action=save", {"filename": ".a"}, 400, "plain name"),
        ("/slots/0?action=save", {"filename": "a" * 200}, 400, "plain name"),
        ("/slots/0?action=save", {"filename": "a\u0000"}, 400, "plain name"),
        ("/slots/0?action=save", {"filename": 4}, 400, "filename"),
        ("/slots/0?action=restore", {"filename": "none"}, 400, "no saved slot"),
        ("/slots/0?action=keep", {"filename": "a"}, 400, "action"),
        ("/slots/0", {"filename": "a"}, 400, "action"),
        ("/slots/x?action=save", {"filename": "a"}, 400, ""),
        ("/slots/0?action=save", {"filename": "a", "more": 1}, 400, "more"),
    ],
)
def test_bad_requests_are_refused(where: str, path: str, body: Any, status: int, words: str) -> None:
    complete(where, STORY)
    got, answer = ask(where, path, body)
    assert got == status and words in answer["error"]["message"], answer


def test_damaged_and_foreign_slot_files_are_refused(where: str, tmp_path: Path) -> None:
    complete(where, STORY)
    assert ask(where, "/slots/0?action=save", {"filename": "a"})[0] == 200
    [path] = (tmp_path / "kv" / "slots").glob("*/a")
    good = path.read_bytes()
    changes: list[Any] = [
        lambda f: f["tokens"].__setitem__(0, 5), lambda f: f["tokens"].append(10**7),
        lambda f: f.update(model="0" * 32),
        lambda f: f.update(format=9), lambda f: f["names"].__setitem__(0, "zz"), lambda f: f.update(extra_key="b"),
        lambda f: f.pop("tokens"), lambda f: f.update(block=7),
    ]  # fmt: skip
    for change in changes:
        file = json.loads(good)
        change(file)
        path.write_text(json.dumps(file))
        status, answer = ask(where, "/slots/0?action=restore", {"filename": "a"})
        words = answer["error"]["message"]
        assert status == (500 if "damaged" in words else 400) and "saved slot a" in words, answer
    for bad in (b"", good[:-9], b"[" * 9999):
        path.write_bytes(bad)
        assert ask(where, "/slots/0?action=restore", {"filename": "a"})[0] == 500
    path.write_bytes(good)
    path.chmod(0o666)
    assert ask(where, "/slots/0?action=restore", {"filename": "a"})[0] == 500


def test_a_disk_that_refuses_is_no_fault_of_the_client(where: str, tmp_path: Path) -> None:
    complete(where, STORY)
    text = ask(where, "/slots/0?action=save", {"filename": "a"})
    assert text[0] == 200
    (tmp_path / "kv").rename(tmp_path / "gone")
    for _ in range(2):
        status, answer = ask(where, "/slots/0?action=save", {"filename": "b"})
        assert status == 507 and answer["error"]["type"] == "server_error", answer
        assert "cannot be written (No such file or directory)" in answer["error"]["message"], answer
    (tmp_path / "gone").rename(tmp_path / "kv")
    [path] = (tmp_path / "kv" / "slots").glob("*/a")
    path.unlink()
    path.symlink_to(path)  # it cannot be opened
    status, answer = ask(where, "/slots/0?action=restore", {"filename": "a"})
    assert status == 500 and "cannot be read" in answer["error"]["message"], answer
    assert complete(where, STORY)[1] > 0, "others go on"


def test_without_a_directory_there_are_no_slots(url: str) -> None:
    assert ask(url, "/slots", method="GET")[0] == 501
    status, answer = ask(url, "/slots/0?action=save", {"filename": "a"})
    assert status == 501 and "--kv-disk" in answer["error"]["message"]


def test_each_key_has_slots_of_its_own(tmp_path: Path) -> None:
    llm = AsyncLLM(**DEMO, drafter="none", kv_disk=f"{tmp_path}/kv:64M")
    with running(llm, Settings(api_keys=("key-a", "key-b"))) as address:
        keys: list[dict[str, Any]] = [{"Authorization": f"Bearer key-{name}"} for name in "ab"]
        one, two = keys
        complete(address, STORY, **one)
        assert ask(address, "/slots", method="GET", **one)[1][0]["n_tokens"] > 0
        assert ask(address, "/slots", method="GET", **two)[1][0]["n_tokens"] == 0
        assert ask(address, "/slots/0?action=save", {"filename": "a"}, **two)[0] == 400
        assert ask(address, "/slots/0?action=erase", **two)[0] == 400
        assert ask(address, "/slots/0?action=save", {"filename": "a"}, **one)[0] == 200
        assert ask(address, "/slots/0?action=restore", {"filename": "a"}, **two)[0] == 400
        complete(address, "Anna has 5 pears. " * 9, **two)
        mine = [at for at, it in enumerate(ask(address, "/slots", method="GET", **two)[1]) if it["n_tokens"]]
        assert ask(address, f"/slots/{mine[0]}?action=save", {"filename": "b"}, **two)[0] == 200
        status, answer = ask(address, "/slots/0?action=restore", {"filename": "b"}, **two)
        assert (status, answer["error"]["message"]) == (400, "Slot 0 is another client's; name another.")
        assert ask(address, "/slots", method="GET", **one)[1][0]["n_tokens"] > 0
        assert ask(address, "/slots", method="GET")[0] == 401
    llm.close()


def test_a_salt_stays_with_its_slot(where: str) -> None:
    def salted(salt: str) -> tuple[str, int]:
        body = {"prompt": STORY, "max_tokens": 8, "temperature": 0, "cache_salt": salt}
        answer = ask(where, "/v1/completions", body)[1]
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    text, _ = salted("x")
    for action in ("save", "erase", "restore"):
        assert ask(where, f"/slots/0?action={action}", {"filename": "a"})[0] == 200
    assert salted("y") == (text, 0) == complete(where, STORY)
    again, cached = salted("x")
    assert again == text and cached >= 32


def test_a_disk_that_hangs_holds_nobody(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from paceline.engine.slots import Slots
    from paceline.serve import slots

    text, _ = complete(where, STORY)
    release = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(Slots, "save", lambda *args: int(release.wait(60)))
        patch.setattr(slots, "DISK_S", 0.2)
        save: tuple[str, dict[str, Any]] = ("/slots/0?action=save", {"filename": "a"})
        with ThreadPoolExecutor(12) as pool:
            answers = [*pool.map(lambda _: ask(where, *save), range(12))]
        assert [(status, answer["error"]["code"]) for status, answer in answers] == [(503, "disk_busy")] * 12
        assert ask(where, *save)[0] == 503
        held = [thread for thread in threading.enumerate() if thread.name == "paceline-slots"]
        assert len(held) == slots.MOST_DISK_THREADS and all(thread.daemon for thread in held)
        assert complete(where, STORY)[0] == text
        release.set()
        for thread in held:
            thread.join()
    assert ask(where, "/slots/0?action=save", {"filename": "a"})[0] == 200


def test_the_warm_up_leaves_the_slots_to_clients(tmp_path: Path) -> None:
    import asyncio

    from paceline.serve.server import Server

    llm = AsyncLLM(**DEMO, drafter="none", kv_disk=f"{tmp_path}/kv:64M")
    asyncio.run(Server(llm, Settings()).warm_up())
    with running(llm, Settings()) as address:
        assert not any(slot["n_tokens"] for slot in ask(address, "/slots", method="GET")[1])
        complete(address, STORY)
        assert ask(address, "/slots/0?action=save", {"filename": "a"})[1]["n_saved"] >= 32
    llm.close()


def test_a_mark_that_is_not_anthropics_is_refused(where: str) -> None:
    mark: Any
    for mark in (3, "ephemeral", [], True, {}, {"type": "lasting"}, {"type": "ephemeral", "ttl": "9h"}):
        block = {"type": "text", "text": "a", "cache_control": mark}
        for body in ({"messages": [{"role": "user", "content": [block]}]},
                     {"messages": [{"role": "user", "content": "a"}], "system": [block]},
                     {"messages": [{"role": "user", "content": "a"}], "cache_control": mark}):  # fmt: skip
            status, answer = ask(where, "/v1/messages", {"max_tokens": 2, **body})
            assert status == 400 and answer["error"]["message"].startswith("cache_control must"), answer


def test_an_earlier_answer_is_found_again(where: str) -> None:
    body = {"input": STORY, "max_output_tokens": 24, "temperature": 0}
    first = ask(where, "/v1/responses", body)[1]
    assert first["usage"]["input_tokens_details"]["cached_tokens"] == 0
    following = {"input": "Go on.", "previous_response_id": first["id"], "max_output_tokens": 4}
    second = ask(where, "/v1/responses", following)[1]
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"] - 16


def test_what_is_said_of_a_prompt_reaches_the_engine(where: str) -> None:
    """prompt_cache_key, cache_control: the prefix comes back."""
    from paceline.engine.session import Session

    seen: list[int | None] = []
    submit = Session.submit

    def spy(self: Any, prompt: Any, params: Any, *args: Any, **more: Any) -> Any:
        seen.append(params.returns)
        return submit(self, prompt, params, *args, **more)

    turn = {"role": "user", "content": [{"type": "text", "text": STORY, "cache_control": {"type": "ephemeral"}}]}
    plain, said = {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Seven."}
    talk = ask(where, "/v1/conversations", {})[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "submit", spy)
        for path, body in (
            ("/v1/completions", {"prompt": "a", "prompt_cache_key": "k"}),
            ("/v1/chat/completions", {"messages": [plain], "prompt_cache_key": "k"}),
            ("/v1/chat/completions", {"messages": [plain]}),
            ("/v1/responses", {"input": "a", "max_output_tokens": 4, "prompt_cache_key": "k"}),
            ("/v1/messages", {"messages": [plain]}),
            ("/v1/messages", {"messages": [turn]}),
            ("/v1/messages", {"messages": [turn, said, plain]}),
            ("/v1/messages", {"messages": [plain], "cache_control": {"type": "ephemeral"}}),
            ("/v1/chat/completions", {"messages": [plain], "prompt_cache_retention": "24h"}),
            ("/v1/responses", {"input": "a", "max_output_tokens": 4}),
            ("/v1/responses", {"input": "a", "max_output_tokens": 4, "store": True}),
            ("/v1/responses", {"input": "a", "max_output_tokens": 4, "conversation": talk["id"]}),
        ):
            body = {"max_tokens": 4, **body} if "max_output_tokens" not in body else body
            status, answer = ask(where, path, body)
            assert status == 200, answer
    whole = [said is not None and said > 10**6 for said in seen]
    assert whole == [True, True, False, True, False, True, False, True, True, False, True, True]
    assert seen[2] is None is seen[4] and 32 < (seen[6] or 0) < 400
