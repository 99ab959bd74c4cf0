"""A request as the front of a cluster knows it. It has all that the text depends on, so that any engine with the same
model goes on with it, without K/V."""

from dataclasses import replace
from time import monotonic

from paceline.cluster.live.messages import SampleNews
from paceline.core.request import Request
from paceline.engine.packing import Origin, pack, unpack


def mirrored(packed: bytes, origin: Origin, number: int, client: str) -> Request:
    """The request of this client that an engine took in."""
    fields = unpack(packed, origin).fields
    return Request(number, arrival=monotonic(), **{**fields, "params": replace(fields["params"], client=client)})


def hear(request: Request, news: SampleNews) -> None:
    """Take the news of a request; one that is parked goes on elsewhere."""
    request.output += news.tokens
    request.tokens += news.tokens
    request.authors += news.authors
    request.marks += news.marks
    request.logprobs += news.logprobs
    request.text += news.text
    if news.prompt_logprobs and not request.prompt_logprobs:
        request.prompt_logprobs = list(news.prompt_logprobs)
    request.stats = news.stats
    if request.admitted is None and news.waited is not None:
        request.admitted = min(request.arrival + news.waited, monotonic())
    if news.finish != "parked":
        request.error = news.error
        request.finish = news.finish


def written(request: Request, origin: Origin) -> bytes:
    """The request as any engine resumes it: its text, and no K/V."""
    return pack(request, origin, monotonic(), request.text, 1, {}, [])
