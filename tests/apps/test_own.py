"""A server that a program starts by itself where nobody serves the model."""

import pytest

from paceline.apps.common.cli import AppAsked, UsageError
from paceline.apps.common.client import CallError
from paceline.apps.common.own import free_port, own_server, serves
from tests.apps.scripted import scripted


async def test_who_serves_is_found_out() -> None:
    with scripted(lambda body: "x") as (url, _):
        assert await serves(url, None) and await serves(f"{url}/v1", None)
        assert not await serves(url, "a-model-that-it-has-not")
    assert not await serves(f"http://127.0.0.1:{free_port()}", None)


async def test_nobody_and_no_model_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.apps.common.cli.URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(UsageError, match="--model smollm2"):
        async with AppAsked().client():
            pass


@pytest.mark.full
async def test_a_server_is_started_for_the_run_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.apps.common.cli.URL", f"http://127.0.0.1:{free_port()}")
    async with AppAsked(model="demo").client() as client:
        assert (await client.chat([{"role": "user", "content": "Hi"}], max_tokens=4)).usage.generated
        url = client.url
        assert await serves(url, None)
    assert not await serves(url, None)


@pytest.mark.full
async def test_a_server_that_does_not_start_is_said_with_its_reason(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CallError, match=r"No server of .* could be started: .*nothing-here"):
        async with own_server(str(tmp_path / "nothing-here")):
            pass
