"""The playground, clicked through in headless Chromium against a real server, its policy in force."""

import json
import re
import shutil
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from paceline import LLM, AsyncLLM, SamplingParams
from paceline.serve.playground import put_together
from paceline.serve.settings import Settings

from .conftest import running
from .process import threaded

PROMPT = "A baker packs 6 rolls into each bag and sells 14 bags. How many rolls does she sell?"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the browser extra")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no Chromium on this machine, looked for {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """The page, connected; at the end nothing may have been thrown or refused by its policy."""
    yield from opened(browser, url, width=1300)


def opened(browser: Any, url: str, width: int) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": width, "height": 800})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security" in said.text else None)
    page.set_default_timeout(20_000)
    page.goto(url)
    see(page, "#state", class_name="up")
    yield page
    page.close()
    assert wrong == []


def see(page: Any, selector: str, text: "str | re.Pattern[str] | None" = None, class_name: str | None = None) -> None:
    from playwright.sync_api import expect

    if text is not None:
        expect(page.locator(selector).last).to_contain_text(text, timeout=20_000)
    if class_name is not None:
        expect(page.locator(selector)).to_have_class(class_name, timeout=20_000)


def send(page: Any, prompt: str = PROMPT, **settings: str) -> None:
    """Fill the settings and send by Enter."""
    for name, value in {"temperature": "0", "seed": "7", "max_tokens": "48", **settings}.items():
        field = page.locator(f"#{name}")
        (field.select_option if field.evaluate("e => e.tagName") == "SELECT" else field.fill)(value)
    page.fill("#prompt", prompt)
    page.press("#prompt", "Enter")


def done(page: Any) -> None:
    see(page, "#status", "Finished")


def raw(page: Any) -> list[str]:
    """Each answer as it was written."""
    texts: list[str] = page.locator(".text").evaluate_all("all => all.map(e => e.raw)")
    return texts


def figure(page: Any, name: str) -> str:
    return str(page.locator(f"[data-figure='{name}'] dd").last.inner_text())


def stats(url: str) -> dict[str, Any]:
    read: dict[str, Any] = httpx2.get(f"{url}/stats").json()
    return read


# -- what is sent to the browser ------------------------------------------------------------------------------------


def test_the_policy_names_the_script_and_the_style_by_hash(url: str) -> None:
    answer = httpx2.get(url)
    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    for tag in ("script", "style"):
        inside = answer.text.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
        assert f"{tag}-src 'sha256-{b64encode(sha256(inside.encode()).digest()).decode()}'" in policy
    assert "unsafe" not in policy and "default-src 'none'" in policy


def test_a_browser_that_has_the_page_is_told_so(url: str) -> None:
    tag = httpx2.get(url).headers["etag"]
    assert httpx2.get(url, headers={"If-None-Match": tag}).status_code == 304
    assert httpx2.get(url, headers={"If-None-Match": '"another"'}).status_code == 200


def test_the_page_loads_nothing_and_inserts_no_html() -> None:
    text = put_together().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\bsrc=|@import", text)


# -- chat -----------------------------------------------------------------------------------------------------------


def test_an_answer_is_coloured_by_author_and_counted(page: Any, llm: LLM) -> None:
    send(page, drafter="model")
    done(page)
    messages = [{"role": "user", "content": PROMPT}]
    (want,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=48, seed=7), progress=False)
    assert raw(page) == [want.text]
    drafted = page.locator(".text .by")
    assert drafted.count() > 0 and drafted.first.get_attribute("data-author") == "model"
    assert drafted.first.evaluate("e => getComputedStyle(e).backgroundColor") != "rgba(0, 0, 0, 0)"
    assert figure(page, "tokens") == str(len(want.token_ids))
    assert float(figure(page, "tau")) > 1 and float(figure(page, "tokens/s").replace(",", "")) > 0
    assert figure(page, "seed") == "7" and figure(page, "of drafts kept").endswith("%")
    assert page.locator("#legend").inner_text().split("\n") == ["the model itself", "model"]


def test_each_drafter_has_a_colour_of_its_own(page: Any) -> None:
    for count, drafter in enumerate(("model", "suffix"), start=1):
        send(page, "1 + 1 = 1 + 1 = 1 + 1 =", drafter=drafter, kind="text")
        see(page, ".figures", "of drafts kept")
        done(page)
        assert page.locator(".turn").count() == count
    colours = page.locator("#legend .by").evaluate_all("all => all.map(e => getComputedStyle(e).borderBottomColor)")
    assert len(set(colours)) == 2


def test_plain_decoding_has_no_colour(page: Any) -> None:
    send(page, drafter="none")
    done(page)
    assert page.locator(".text").inner_text() and page.locator(".by").count() == 0
    assert figure(page, "tau") == "1.00"


def test_the_conversation_goes_on_and_starts_anew(page: Any) -> None:
    send(page)
    done(page)
    with page.expect_request("**/v1/chat/completions") as second:
        send(page, "And 15 bags?")
    done(page)
    sent = second.value.post_data_json["messages"]
    assert [m["role"] for m in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == raw(page)[0]
    page.click("#fresh")
    assert page.locator(".turn").count() == 0 and page.locator("#blank").is_visible()
    with page.expect_request("**/v1/chat/completions") as third:
        send(page)
    done(page)
    assert len(third.value.post_data_json["messages"]) == 1


def test_a_new_chat_drops_the_answer_that_is_being_written(page: Any) -> None:
    send(page, temperature="3", max_tokens="400", drafter="none")
    page.locator(".figures >> nth=0").get_by_text("tokens/s").wait_for()
    page.click("#fresh")
    page.locator("#send").wait_for()
    with page.expect_request("**/v1/chat/completions") as sent:
        send(page)
    done(page)
    assert len(sent.value.post_data_json["messages"]) == 1 and page.locator(".turn").count() == 1


@pytest.mark.parametrize("how", ["click", "Escape"])
def test_stop_ends_the_answer_and_the_request(page: Any, url: str, how: str) -> None:
    send(page, kind="text", temperature="3", max_tokens="400", drafter="none")
    page.locator(".text[aria-busy] >> nth=0").wait_for()
    page.locator(".figures >> nth=0").get_by_text("tokens/s").wait_for()
    page.click("#stop") if how == "click" else page.keyboard.press("Escape")
    see(page, ".turn", "Stopped.")
    assert 0 < int(figure(page, "tokens")) < 400
    assert page.locator("#send").is_visible() and page.locator("[aria-busy]").count() == 0
    see(page, "#state", class_name="up")
    page.click("#tab-dashboard")
    see(page, "[data-tile=Running] dd >> nth=0", re.compile("^0$"))
    assert stats(url)["running"] == 0


# -- plain beside speculative ---------------------------------------------------------------------------------------


def test_plain_beside_speculative_says_identical(page: Any) -> None:
    page.check("#beside")
    send(page, drafter="model", temperature="0.8")
    done(page)
    plain, fast = raw(page)
    assert plain == fast and plain
    assert page.locator(".both > div:first-child .by").count() == 0 < page.locator(".both .by").count()
    assert page.locator(".both h3").all_inner_texts() == ["Plain", "Speculative: model"]
    assert re.search(r"ran at \d+\.\d\d times .* the texts are identical\.", page.locator(".verdict").inner_text())


def test_plain_beside_speculative_says_where_texts_part(page: Any) -> None:
    page.check("#beside")
    send(page, drafter="model", verifier="chain", temperature="1")
    done(page)
    plain, fast = raw(page)
    at = next(i for i, (a, b) in enumerate(zip(plain, fast)) if a != b)
    assert f"the texts differ: they part at character {at + 1}." in page.locator(".verdict").inner_text()


# -- errors ---------------------------------------------------------------------------------------------------------


def test_a_refusal_is_the_servers_sentence_and_the_message_is_kept(page: Any, client: OpenAI) -> None:
    with pytest.raises(Exception) as refused:
        wish = {"drafter": "ngram", "verifier": "kseq"}
        client.completions.create(model="demo", prompt="1", extra_body={"speculation": wish})
    send(page, drafter="ngram", verifier="kseq")
    sentence = page.locator(".turn [role=alert]")
    sentence.wait_for()
    assert sentence.inner_text() == refused.value.body["message"]  # type: ignore[attr-defined]
    assert page.input_value("#prompt") == PROMPT
    send(page, drafter="auto", verifier="")
    done(page)


def test_a_number_out_of_range_is_not_sent(page: Any) -> None:
    send(page, seed="-1")
    see(page, ".turn [role=alert]", "Seed must be a whole number from 0 to 2^53 - 1")


def test_key_and_a_server_that_is_gone(browser: Any, engine: AsyncLLM) -> None:
    with running(engine, Settings(served_model_name=("demo",), api_keys=("secret",))) as url:
        page = browser.new_page()
        page.goto(url)
        see(page, "#state", "Enter the API key under Settings.", class_name="down")
        page.fill("#key", "secret")
        page.press("#key", "Tab")
        see(page, "#state", "demo", class_name="up")
        send(page)
        done(page)
        page.reload()
        see(page, "#state", "demo", class_name="up")
        assert page.input_value("#key") == "secret"
    send(page)
    see(page, ".turn [role=alert]", "The server cannot be reached")
    see(page, "#state", "The server cannot be reached", class_name="down")
    page.close()


# -- text is text ---------------------------------------------------------------------------------------------------

ATTACK = "<img src=x onerror='document.title=1'><script>document.title=1</script><b>bold</b>"


def test_markup_from_user_and_model_is_inert(page: Any) -> None:
    """The request gets a grammar on its way, so that the real model answers with markup."""
    grammar = {"kind": "regex", "text": re.sub(r"([.()\[\]])", r"\\\1", ATTACK)}

    def add(route: Any) -> None:
        route.continue_(post_data={**route.request.post_data_json, "grammar": grammar})

    page.route("**/v1/chat/completions", add)
    send(page, ATTACK, max_tokens="120")
    done(page)
    assert page.locator(".asked").inner_text() == ATTACK and page.locator(".text").inner_text() == ATTACK
    assert page.locator(".turn :is(script, img, b)").count() == 0 and page.title() == "Paceline"


def test_the_policy_stops_what_would_insert_markup(browser: Any, url: str) -> None:
    page = browser.new_page()
    page.goto(url)
    told = page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return ''; } catch (e) { return e.name; } }"
    )
    assert told == "TypeError"
    page.close()


MARKED = """# One *two*
- a **b** `c*d*`
1. x
   2*3*4 = 24
> quoted [ok](https://example.org/a) [no](javascript:alert(1)) ![pic](https://example.org/p.png)

| a | b |
|---|---|
| 1 | <i>2</i> |
```py
x = "<b>" # *not*
```
tail"""


def test_markdown_is_formatted_and_nothing_of_it_runs(page: Any) -> None:
    html = page.evaluate(
        """text => { const body = new Coloured("text", [[text, "target", 1]]); body.draw(true);
        return body.node.outerHTML; }""",
        MARKED,
    )
    for part in (
        "<h3>One <em>two</em></h3>", "<ul><li>a <strong>b</strong> <code>c*d*</code></li></ul>", '<ol start="1">',
        "2*3*4 = 24", "<td>&lt;i&gt;2&lt;/i&gt;</td>", 'x = "&lt;b&gt;" # *not*', "[no](javascript:alert(1))",
        '<a href="https://example.org/a" target="_blank" rel="noopener noreferrer nofollow"', "<span>pic</span>",
        "<p>tail</p>",
    ):  # fmt: skip
        assert part in html, part
    assert "<img" not in html and html.count("<a ") == 1 and "<i>" not in html


@pytest.mark.parametrize("at", range(0, 60, 7))
def test_every_letter_of_markdown_keeps_its_author(page: Any, at: int) -> None:
    """Wherever a drafter's run begins and ends, its letters are the tinted ones."""
    runs = [[MARKED[:at], "target", 1], [MARKED[at : at + 40], "model", 3], [MARKED[at + 40 :], "target", 1]]
    tinted, whole = page.evaluate(
        """runs => { const body = new Coloured("text", runs); body.draw(true);
        const read = (nodes) => [...nodes].map((e) => e.textContent).join("");
        return [read(body.node.querySelectorAll(".by")), body.text]; }""",
        runs,
    )
    assert whole == MARKED

    def letters(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text)

    hidden = "httpsexampleorga", "javascriptalert1", "httpsexampleorgppng", "py"
    want = letters(MARKED[at : at + 40])
    assert letters(tinted) == want or any(letters(tinted) in want or part in letters(MARKED) for part in hidden)


# -- settings, conversations ----------------------------------------------------------------------------------------


def test_every_sampling_field_is_sent_and_has_a_tip(page: Any) -> None:
    page.click("summary")
    page.fill("#system", "Be brief.")
    given = {
        "top_p": "0.9", "top_k": "40", "min_p": "0.01", "min_tokens": "2", "repetition_penalty": "1.1",
        "presence_penalty": "0.5", "frequency_penalty": "-0.5", "stops": "@@\n##", "bad_words": "elf",
        "stop_token_ids": "9, 10", "logit_bias": '{"7": -3}',
    }  # fmt: skip
    page.check("#include_stop")
    page.check("#show_special")
    with page.expect_request("**/v1/chat/completions") as sent:
        send(page, **given)
    done(page)
    body = sent.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    want = {
        "temperature": 0, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "min_tokens": 2, "repetition_penalty": 1.1,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "stop": ["@@", "##"], "bad_words": ["elf"],
        "logit_bias": {"7": -3}, "stop_token_ids": [9, 10],
        "include_stop": True, "skip_special_tokens": False, "seed": 7, "max_tokens": 48,
    }  # fmt: skip
    assert {name: body.get(name) for name in want} == want
    tips = page.locator("#fields .tip")
    assert tips.count() == page.locator("#fields :is(input, textarea)").count() > 20
    assert all(tips.evaluate_all("all => all.map(e => e.dataset.tip.length > 10 && e.tabIndex === 0)"))


def test_a_schema_shapes_the_answer(page: Any) -> None:
    page.click("summary")
    send(page, schema='{"enum": ["yes", "no"]}')
    done(page)
    assert raw(page)[0] in ('"yes"', '"no"')
    send(page, schema="{")
    see(page, ".turn [role=alert]", "JSON schema is not JSON")


def test_conversations_are_kept_edited_and_exported(page: Any) -> None:
    for prompt in ("First", "Second"):
        send(page, prompt, max_tokens="8")
        done(page)
    texts = raw(page)
    page.reload()
    see(page, "#state", class_name="up")
    page.locator("#kept").get_by_text("First").click()
    assert raw(page) == texts and page.locator(".asked").all_inner_texts() == ["First", "Second"]
    assert page.locator(".figures").count() == 2
    page.locator(".acts").last.get_by_text("Regenerate").click()
    done(page)
    assert page.locator(".asked").all_inner_texts() == ["First", "Second"]
    page.locator(".acts").first.get_by_text("Edit").click()
    assert page.input_value("#prompt") == "First"
    page.fill("#prompt", "Third")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.press("#prompt", "Enter")
    done(page)
    assert [m["content"] for m in sent.value.post_data_json["messages"]] == ["Third"]
    assert page.locator(".asked").all_inner_texts() == ["Third"]
    with page.expect_download() as file:
        page.click("#export")
    (kept,) = json.loads(Path(file.value.path()).read_text())
    assert [turn["prompt"] for turn in kept["turns"]] == ["Third"] and kept["turns"][0]["answer"]["text"] == raw(page)[
        0
    ]
    page.click("#forget")
    page.click("#forget")
    assert page.locator("#kept li").count() == 0 and page.locator(".turn").count() == 0


def test_a_kept_conversation_of_another_hand_cannot_run_anything(page: Any) -> None:
    """What lies in the browser's storage is text, too."""
    turn = {"prompt": ATTACK, "answer": {"text": ATTACK, "runs": [[ATTACK, "<b>x", 1]], "took": 1}}
    page.evaluate(
        "chats => localStorage.setItem('paceline-chats', JSON.stringify(chats))",
        [{"id": "x", "at": 1, "title": ATTACK, "turns": [turn]}],
    )
    page.reload()
    page.locator("#kept button").first.click()
    assert page.locator(".asked").inner_text() == ATTACK and page.title() == "Paceline"
    assert page.locator("main :is(script, img, b)").count() == 0


def test_the_theme_is_switched_and_kept(page: Any) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    colours = [page.evaluate(paper)]
    for name in ("Light", "Dark"):
        page.click("#theme")
        see(page, "#theme", name)
        colours.append(page.evaluate(paper))
    assert colours[1] != colours[2]
    page.reload()
    assert page.evaluate(paper) == colours[2]


# -- keyboard, names, narrow screens --------------------------------------------------------------------------------


def test_keyboard(page: Any) -> None:
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert page.input_value("#prompt") == "one\ntwo" and page.locator(".turn").count() == 0
    page.keyboard.press("Enter")
    done(page)
    assert page.locator(".asked").inner_text() == "one\ntwo" and page.input_value("#prompt") == ""
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    page.locator("#dashboard").wait_for()
    assert page.evaluate("document.activeElement.id") == "tab-dashboard" and page.locator("#chat").is_hidden()
    page.keyboard.press("ArrowLeft")
    page.locator("#chat").wait_for()


def test_everything_one_can_use_has_a_name(page: Any) -> None:
    names = page.locator("input, select, textarea, button, svg").evaluate_all(
        "all => all.map(e => [e.id, e.ariaLabel || e.labels?.[0]?.textContent.trim() || e.textContent.trim()])"
    )
    assert len(names) > 20 and [id for id, name in names if not name and not id.startswith("c-")] == []
    page.click("#tab-dashboard")
    page.locator("#c-depth[aria-label]").wait_for()
    assert page.locator("svg:not([aria-label])").count() == 0


def test_a_narrow_screen_holds_everything(browser: Any, url: str) -> None:
    for page in opened(browser, url, width=360):
        assert page.locator("aside").is_hidden()
        page.click("#open")
        assert page.locator("aside").is_visible() and page.get_attribute("#open", "aria-expanded") == "true"
        page.check("#beside")
        send(page, "x" * 200, max_tokens="16")
        done(page)
        for tab in ("#tab-chat", "#tab-dashboard"):
            page.click(tab)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            for box in ("#scroll", "#dashboard"):
                assert page.locator(box).evaluate("e => e.scrollWidth <= e.clientWidth")


@pytest.mark.parametrize("width", [360, 390, 820, 1100, 1440])
def test_the_composer_stands_at_the_bottom(browser: Any, url: str, width: int) -> None:
    for page in opened(browser, url, width=width):
        box = page.locator("#foot").bounding_box()
        assert 0 <= 800 - (box["y"] + box["height"]) < 2
        page.fill("#prompt", PROMPT)
        page.press("#prompt", "Enter")
        done(page)
        box = page.locator("#foot").bounding_box()
        assert 0 <= 800 - (box["y"] + box["height"]) < 2
        assert page.locator("#scroll").bounding_box()["height"] > 300


# -- dashboard ------------------------------------------------------------------------------------------------------


def test_the_dashboard_shows_the_servers_counters(page: Any, url: str) -> None:
    send(page, drafter="model")
    done(page)
    page.click("#tab-dashboard")
    now = stats(url)
    generated = f"{now['tokens']['generated']:,}"
    see(page, "[data-tile='Tokens per second']", f"{generated} so far")
    see(page, "[data-tile=Tau] dd >> nth=0", f"{now['tau']:.2f}")
    see(page, "[data-tile='K/V in use']", f"{now['kv']['blocks']:,} blocks")
    see(page, "[data-tile='Drafter errors'] dd >> nth=0", str(now["drafter_errors"]))
    see(page, "[data-tile=Pre-emptions] dd >> nth=0", str(now["preemptions"]))
    assert page.locator("#c-depth rect.kept").count() == len(now["offered"])
    titles = page.locator("#c-depth rect.kept title").all_text_contents()
    assert titles[0] == f"depth 1: {now['kept'][0]} kept of {now['offered'][0]} offered"
    row = page.locator("#drafters tr", has=page.locator("[data-author=model]")).inner_text().split()
    mine = now["by_drafter"]["model"]
    assert row[:2] == ["model", f"{mine['generated'] / mine['passes']:.2f}"]
    assert row[-2:] == [f"{mine['generated']:,}", f"{mine['passes']:,}"]


def test_the_dashboard_draws_what_changes(page: Any) -> None:
    page.click("#tab-dashboard")
    page.locator("#c-rate path.s0").first.wait_for(state="attached")
    before = page.locator("[data-tile='Tokens per second'] dd").last.inner_text()
    page.click("#tab-chat")
    send(page, drafter="none", kind="text", temperature="3", max_tokens="100")
    done(page)
    page.click("#tab-dashboard")
    see(page, "#c-tau path.s0", "")
    page.select_option("#span", "60")
    see(page, "#drafters", "none")
    assert page.locator("[data-tile='Tokens per second'] dd").last.inner_text() != before
    page.locator("#c-rate").hover(position={"x": 480, "y": 60})
    see(page, "figure:has(#c-rate) .read", "s ago")


def test_the_server_keeps_the_last_hour(browser: Any, engine: AsyncLLM) -> None:
    """A page that is opened later draws what was before it."""
    with threaded(engine, Settings(served_model_name=("demo",))) as (url, process):
        history = process.operation.history.readings
        while len(history) < 2:
            httpx2.get(f"{url}/health")
        kept = httpx2.get(f"{url}/stats/history").json()["readings"]
        assert len(kept) >= 2 and kept[0]["uptime_s"] < kept[1]["uptime_s"] and "about" not in kept[0]
        for page in opened(browser, url, width=1100):
            page.click("#tab-dashboard")
            page.select_option("#window", "3600")
            see(page, "figure:has(#c-kv) text >> nth=2", "1 h ago")
            page.locator("#c-kv path.s0").first.wait_for(state="attached")
            assert page.evaluate("readings[0].uptime_s") == kept[0]["uptime_s"]


def test_polling_pauses_while_the_page_is_hidden(page: Any) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(
        "() => { Object.defineProperty(document, 'hidden', {configurable: true, get: () => true});"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page.wait_for_timeout(1500)
    asked.clear()
    page.wait_for_timeout(1500)
    assert asked == []
    with page.expect_request("**/stats"):
        page.evaluate("() => { delete document.hidden; document.dispatchEvent(new Event('visibilitychange')); }")
