"""Attacks on a real `paceline serve`, and on `paceline route` in front of two, beside a client that wants ten tokens
every 100 ms: `python -m bench.attacks [--model DIR] [--only NAME] [serve] [route] [boxes]`.

Of each attack: the client's longest wait, how many of its requests failed, how much memory the servers grew by, and
whether one died. On a quiet machine waits stay below 1 s and growth below 100 MB, and no process dies; the exit code is
1 if one limit is exceeded, a process died or a request of the client failed.
"""

import argparse
import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from bench.attacks import boxes, remote
from bench.attacks.process import Started, started
from bench.attacks.wire import Bystander, Hurt, post

MINE, THEIRS, ROUTER = "client-key-0123", "attacker-key-4567", "router-key-8901"
MOST_WAIT_S, MOST_GROWTH_MB = 1.0, 100.0
NOTICED_S = 75.0
"""Seconds until a router has seen that an engine answers nothing: two probes of 2 and 30 s, and some more."""
SETTLE_S = 4.0
"""After an attack, until memory has gone back."""


def run(where: str, url: str, processes: Sequence[Started], attacks: Sequence[remote.Attack]) -> bool:
    """All attacks on one address; False where a process died, the client was not served or waited for too long, or
    memory grew."""
    good = True
    bystander = Bystander(url, MINE)
    try:
        time.sleep(2)
        wait, count, bad = bystander.take()
        print(f"{where}: alone the client waits {1000 * wait:.0f} ms at most ({count} requests)", flush=True)
        for attack in attacks:
            bystander.take()
            before = sum(each.resident_mb for each in processes)
            began = time.monotonic()
            hurt = False
            try:
                said = attack(url, THEIRS)
            except Hurt as error:
                hurt, said = True, str(error)
            wait, count, bad = bystander.take()
            seconds = time.monotonic() - began
            time.sleep(SETTLE_S)
            more = sum(each.resident_mb for each in processes) - before
            late, _, worse = bystander.take()
            died = [each.url for each in processes if not each.alive]
            print(
                f"{where:6} {attack.__name__:11} {seconds:5.1f} s  longest wait {max(wait, late):6.3f} s of {count:3}, "
                f"{bad + worse} failed, grew {more:+6.0f} MB, {len(died)} died  [{said}]",
                flush=True,
            )
            if hurt or died or bad + worse or max(wait, late) > MOST_WAIT_S or more > MOST_GROWTH_MB:
                print(f"{where:6} {attack.__name__}: beyond its limits", flush=True)
                good = False
    finally:
        bystander.close()
    return good


def page(url: str) -> bool:
    """E9: what a web page of another origin can send, and who may call himself what; False where it is answered."""
    parts = urlsplit(url)
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    plain = post(url, "/v1/completions", body, THEIRS, **{"Content-Type": "text/plain"})
    none = post(url, "/v1/completions", body, "")
    print(f"route  text/plain: {plain[0]}; no key: {none[0]}")
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.request("GET", "/v1/models", headers={"Host": "evil.example"})
    named = connection.getresponse().status
    print(f"route  Host evil.example without a key: {named}", flush=True)
    return plain[0] == 400 and none[0] == named == 401


def closing(seconds: float = 10.0) -> bool:
    """E9: an engine that lists its model and closes whenever it is asked; how often a router asks it. False for more
    than ten times a second."""
    import socketserver

    asked = 0

    class Closes(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            nonlocal asked
            if self.rfile.readline().startswith(b"GET"):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
            else:
                asked += 1

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Closes) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        engine = f"http://127.0.0.1:{server.server_address[1]}"
        with started(("route", engine, "--port", "0")) as (router,):
            end, answers = time.monotonic() + seconds, []
            while time.monotonic() < end:
                answers.append(post(router.url, "/v1/completions", {"prompt": "x"}, ""))
            print(f"route  an engine that closes: asked {asked} times in {seconds:.0f} s  [{remote.told(answers)}]")
            far = post(router.url, "/v1/completions", {"prompt": "x"}, "", Origin="https://evil.example")
            print(f"route  a page of another origin, without keys: {far[0]}", flush=True)
        server.shutdown()
    return asked <= 10 * seconds and far[0] == 403


def stopped(router: Started, engine: Started) -> bool:
    """E9: one of two engines is stopped, as a hung machine is; False where a call of the client fails, or waits once
    the router has seen it."""
    bystander = Bystander(router.url, MINE, timeout=2 * NOTICED_S)
    try:
        time.sleep(2)
        bystander.take()
        os.kill(engine.child.pid, signal.SIGSTOP)
        time.sleep(NOTICED_S)
        wait, _, bad = bystander.take()
        time.sleep(3)
        late, count, worse = bystander.take()
    finally:
        os.kill(engine.child.pid, signal.SIGCONT)
        bystander.close()
    print(f"route  a stopped engine: noticed after {wait:.1f} s, then {late:.2f} s of {count}; {bad + worse} failed")
    return bad + worse == 0 and late <= MOST_WAIT_S


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.attacks")
    parser.add_argument("what", nargs="*", default=["serve", "route", "boxes"], choices=["serve", "route", "boxes"])
    parser.add_argument("--model", help="a checkpoint; default: the demo pair")
    parser.add_argument("--only", action="append", help="an attack's name; may be repeated")
    given = parser.parse_args()
    model = [given.model] if given.model else []
    keys = ["--api-key", MINE, "--api-key", THEIRS]
    serve = ("serve", *model, "--port", "0", "--memory", "1G")
    good = True

    def chosen(attacks: Sequence[remote.Attack]) -> list[remote.Attack]:
        if not given.only:
            return list(attacks)
        return [each for each in (*attacks, *remote.NAMED) if each.__name__ in given.only]

    if "serve" in given.what:
        with started((*serve, *keys)) as (server,):
            good &= run("serve", server.url, [server], chosen(remote.SERVED))
    if "route" in given.what:
        route = ("route", "--slots", "32", "--port", "0", *keys, "--engine-key", ROUTER)
        with (
            started(*[(*serve, "--router-key", ROUTER)] * 2) as engines,
            started((*route, *(e.url for e in engines))) as (router,),
        ):
            good &= run("route", router.url, [router, *engines], chosen(remote.ROUTED))
            good &= page(router.url)
            good &= stopped(router, engines[0])
        good &= closing()
    if "boxes" in given.what:
        good &= boxes.run()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
