"""The runtime in the sandbox: runs an instrumented fragment and asks for what is missing.

Reads `job.json` (the program, values known already), writes `events.jsonl` as things happen, so that a fragment that
is stopped leaves what it did: {"event": "line"}, {"event": "value"} for each value put in, {"event": "call"} for a
call that failed, {"event": "end"} with the error or that a loop does not end, {"event": "called"} for a function that
nobody else called, {"event": "late"} for one that was left.
Questions go to descriptor 3, a JSON object a line; answers come back in the same way.
"""

import __future__

import ast
import asyncio
import builtins
import enum
import importlib.machinery
import inspect
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from types import CodeType, FrameType, FunctionType
from typing import Any

from absent import PACKAGE, PICO_BROAD, PICO_FILE, Absent, Modules  # type: ignore[import-not-found]
from dummies import Dummy, value  # type: ignore[import-not-found]
from modules import arguments_of, content, usual  # type: ignore[import-not-found]
from uncalled import (  # type: ignore[import-not-found]
    CALL_S,
    MOST_LATE,
    Uncalled,
    Unending,
    alarm,
    functions,
    name_of,
    named,
    raised_on_purpose,
    wanted,
)

FUNCTION = "__fragment__"
EVALUATE_S = 2
PASSED_ON = (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration, RecursionError)
MOST_ITEMS = 1000
QUIET_S = 4
"""Seconds without a line that has not run before, after which the fragment is taken to be in an endless loop."""
SLEEP_S = 0.01
"""Longest sleep: nothing that a fragment waits for happens in the sandbox."""


class NoValue(Exception):
    """Error: no predictor has a value for what is missing."""


class PicoEvents:
    """The file of what happened, unbuffered."""

    def __init__(self) -> None:
        self.fd = os.open("events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, **fields: Any) -> None:
        os.write(self.fd, (json.dumps({"event": event, **fields}, default=str) + "\n").encode())


class Runtime:
    """The hooks. A key (kind and name) has one value in a run."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.sites, self.imports, self.shift = job["sites"], job["imports"], job["shift"]
        self.known: dict[str, dict[str, Any]] = job["known"]
        self.read: dict[str, list[str]] = job["read"]
        """Attributes that the fragment reads of each name."""
        self.fields: list[str] = job["fields"]
        self.form: str = job["form"]
        self.within: list[str] = job["within"]
        """Names of files that a made folder holds."""
        self.events = PicoEvents()
        self.memo: dict[str, Any] = {}
        self.guesses: dict[str, dict[str, Any]] = {}
        """What the values in `memo` were made of."""
        self.env: dict[str, Any] = {"__name__": "values", "Dummy": Dummy}
        self.lines: set[int] = set()
        self.imported: set[str] = set()
        self.made: set[str] = set()
        self.defined: list[FunctionType] = []
        """Functions as they were before their decorators."""
        self.entered: set[CodeType] = set()
        self.left: dict[str, Any] = {}
        """Names of the function that a fragment became."""
        self.objects: dict[type, Any] = {}
        self.newest_s = time.monotonic()
        self.reported = set[tuple[int, str]]()
        """Calls that failed, by site and error: a loop reports each once."""
        self.talk = os.fdopen(3, "r+b", buffering=0) if job["ask"] else None

    # Hooks

    def name(self, site: int, read: Any, /) -> Any:
        try:
            return read()
        except NameError as error:
            where = self.sites[site]
            if type(error) is NameError and self.talk is not None and where["name"] not in self.known:
                try:
                    found, imports = usual(where["name"], self.read.get(where["name"], ()))
                except LookupError:
                    pass
                else:
                    if not {"NameError", *PICO_BROAD} & set(where["guards"]):
                        if where["name"] not in self.imported:
                            self.imported.add(where["name"])
                            self.events.write(
                                "import", name=where["name"], line=where["line"], shown=shown(found), imports=imports
                            )
                        return found
            return self.supply(where, error, ("NameError", "UnboundLocalError"))

    def attribute(self, site: int, thing: Any, /) -> Any:
        where = self.sites[site]
        name = where["name"]
        if name.startswith("__") and not name.endswith("__") and where["owner"]:
            name = f"_{where['owner'].lstrip('_')}{name}"
        try:
            return getattr(thing, name)
        except AttributeError as error:
            return self.supply(where, error, ("AttributeError",))

    def call(self, site: int, callee: Any, /, *args: Any, **kwargs: Any) -> Any:
        where = self.sites[site]
        if callee is Dummy or issubclass(type(callee), Dummy):
            return self.supply(where, TypeError("nothing is known of this callable"), (), injected=True)
        if callee is open and args and isinstance(args[0], Dummy):  # which is a number, too: that of an open file
            args = (os.fspath(args[0]), *args[1:])
        if self.talk is not None and not args and not kwargs and (words := arguments_of(callee)):
            args = (words,)
            guess = {"expression": repr(words), "argv": words, "how": "arguments"}
            self.events.write(
                "value", key=f"call:{where['name']}", line=where["line"], guess=guess, tried=0, shown=shown(words)
            )
        try:
            return callee(*args, **kwargs)
        except PASSED_ON:
            raise
        except Exception as error:
            if self.absent(error, where):
                return self.call(site, callee, *args, **kwargs)
            if raised_here(error) or PICO_BROAD & set(where["guards"]):
                raise
            if type(error).__name__ in where["guards"]:
                raise
            said = {"name": where["name"], "error": type(error).__name__, "message": str(error)[:300]}
            if (site, said["error"]) not in self.reported:
                self.reported.add((site, said["error"]))
                self.events.write("call", line=where["line"], **said)
            return self.supply(where, error, ())

    def decorator(self, decorate: Any, /) -> Any:
        def remembered(function: Any) -> Any:
            if isinstance(function, FunctionType):
                self.defined.append(function)
            return decorate(function)

        return remembered

    def absent(self, error: Exception, where: dict[str, Any]) -> bool:
        """Whether a file or folder that a call did not find has been made, so that it may be tried again."""
        path = getattr(error, "filename", None)
        if not isinstance(error, FileNotFoundError) or not isinstance(path, str) or not path or self.talk is None:
            return False
        if (
            path in self.made
            or launching(error)
            or {"FileNotFoundError", "OSError", "IOError", *PICO_BROAD} & set(where["guards"])
        ):
            return False
        self.made.add(path)
        folder = "." not in os.path.basename(path) and where["name"].rpartition(".")[2] != "open"
        try:
            os.makedirs(path if folder else os.path.dirname(path) or ".", exist_ok=True)
            if not folder and not os.path.exists(path):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(content(path, self.fields, self.form))
            for name in self.within if folder else ():
                with open(os.path.join(path, name), "w", encoding="utf-8") as file:
                    file.write(content(name, self.fields, self.form))
        except OSError:
            return False
        self.events.write("file", name=path[:300], line=where["line"], folder=folder)
        return True

    # Values

    def supply(self, where: dict[str, Any], error: Exception, guarded: tuple[str, ...], injected: bool = False) -> Any:
        """A value for what is missing; the error itself if the fragment handles it by name, or no predictor has a
        value."""
        if set(guarded) & set(where["guards"]):
            raise error
        key = f"{where['kind']}:{where['name']}"
        if key not in self.memo:
            try:
                self.memo[key] = self.asked(key, where, error)
            except NoValue:
                if injected:
                    return Dummy()
                raise error from None
        return self.memo[key]

    def asked(self, key: str, where: dict[str, Any], error: Exception) -> Any:
        """Ask until a value can be made. Raises NoValue."""
        with alarm(0, TimeoutError):  # no call's time passes meanwhile
            try:
                return self.answered(key, where, error)
            finally:
                self.newest_s = time.monotonic()

    def answered(self, key: str, where: dict[str, Any], error: Exception) -> Any:
        problem, tried = "", 0
        guess = self.known.get(key)
        while True:
            if guess is None:
                guess = self.question(key, where, error, problem, tried)
                tried += 1
            if guess.get("stop"):
                raise NoValue(key)
            try:
                made = self.evaluate(guess)
            except BaseException as failure:
                if isinstance(failure, KeyboardInterrupt | SystemExit) and not guess.get("expression"):
                    raise
                problem, guess = f"{type(failure).__name__}: {failure}"[:300], None
                continue
            self.guesses[key] = guess
            told = {**guess, "of": where["of"]} if "of" in where else guess
            self.events.write("value", key=key, line=where["line"], guess=told, tried=tried, shown=shown(made))
            return made

    def question(self, key: str, where: dict[str, Any], error: Exception, problem: str, tried: int) -> dict[str, Any]:
        if self.talk is None:
            return {"stop": True}
        asked = {"key": key, "kind": where["kind"], "name": where["name"], "line": where["line"], "problem": problem,
                 "error": f"{type(error).__name__}: {error}"[:300], "tried": tried}  # fmt: skip
        self.talk.write(json.dumps(asked).encode() + b"\n")
        reply: dict[str, Any] = json.loads(self.talk.readline() or b'{"stop": true}')
        return reply

    def evaluate(self, guess: dict[str, Any]) -> Any:
        """The value that a guess describes, made within EVALUATE_S seconds."""
        if "type" in guess:
            return value(guess["type"])
        with alarm(EVALUATE_S, TimeoutError):
            scope = dict(self.env)
            exec(compile(guess.get("code", ""), "values", "exec", dont_inherit=True), scope)
            made = eval(compile(guess["expression"].strip(), "values", "eval", dont_inherit=True), scope)
        self.env = scope
        return made

    # What nobody called

    def call_the_rest(self, names: dict[str, Any], tree: ast.AST) -> None:
        """Call each function that did not run, once. Where one fails, that is written down and the next is called;
        one that does not end is left."""
        late = 0
        for each in functions({**names, **self.left}, self.defined, PICO_FILE):
            line, name = self.line_of(each.function), name_of(each.function)
            if each.function.__code__ in self.entered:
                continue
            try:
                with alarm(CALL_S, Unending):
                    self.call_uncalled(each, line, name, tree)
            except Unending:
                late += 1
                self.events.write("late", line=line, name=name)
            except BaseException as error:
                self.failed(error, name, tree)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if late == MOST_LATE:
                return

    def call_uncalled(self, each: Uncalled, line: int, name: str, tree: ast.AST) -> None:
        """One call; none where an object or a value for it cannot be made, which is no fault of the fragment."""
        function, kept = each.function, dict[str, Any]()
        try:
            first = [each.owner] if each.gets == "class" else []
            first += [self.object_of(each.owner, line, tree)] if each.gets in ("self", "set") else []
            if function.__code__ in self.entered:  # by the making of its object
                return
            parts = [self.argument(name, part, line, kept) for part in wanted(function, len(first))]
            more = {part[0]: self.argument(name, part, line, kept) for part in named(function)}
        except Exception:
            return
        self.events.write("called", line=line, name=name, gets=each.gets, arguments=kept, named=list(more))
        finish(function(*first, *parts, **more))

    def failed(self, error: BaseException, name: str, tree: ast.AST) -> None:
        """Write down an error of the fragment's code; not what it raises itself, nor one of the call as such."""
        line = last_line(error, self.shift)
        if line is not None and not isinstance(error, PASSED_ON) and not raised_on_purpose(error, PICO_FILE, tree):
            said = {"error": type(error).__name__, "message": str(error)[:300]}
            self.events.write("call", line=line, name=name, **said)

    def line_of(self, function: Any) -> int:
        return int(function.__code__.co_firstlineno) - int(self.shift)

    def argument(self, of: str, part: tuple[str, str], line: int, kept: dict[str, Any], kind: str = "name") -> Any:
        """The value of a parameter: the search's, else what its annotation says, else what a predictor says."""
        name, word = part
        key = f"{kind}:{name}"
        where = {"kind": kind, "name": name, "line": line, "guards": (), "owner": "", "of": of}
        if word and key not in self.known:
            kept[name] = {"type": word, "how": "annotation", "of": of}
            made = self.evaluate(kept[name])
            self.events.write("value", key=key, line=line, guess=kept[name], tried=0, shown=shown(made))
            return made
        made = self.supply(where, NameError(f"{name} is a parameter of {of}"), ())
        kept[name] = self.guesses.get(key, {"type": "Object"})
        return made

    def object_of(self, owner: Any, line: int, tree: ast.AST) -> Any:
        """An object of a fragment's class; one that is not initialised where that fails. Where the code that makes it
        is not the fragment's, as with dataclasses, what it gets are values of attributes, put in at `line`."""
        if owner not in self.objects:
            code = getattr(owner.__init__, "__code__", None)
            own = code is not None and code.co_filename == PICO_FILE
            name, kind = f"{owner.__qualname__}.__init__", "name" if own else "attribute"
            at = self.line_of(owner.__init__) if own else line
            try:
                if isinstance(owner, enum.EnumMeta):
                    self.objects[owner] = next(iter(owner))
                else:
                    parts = [self.argument(name, part, at, {}, kind) for part in wanted(owner, 0)]
                    more = {part[0]: self.argument(name, part, at, {}, kind) for part in named(owner)}
                    self.objects[owner] = owner(*parts, **more)
            except Exception as error:
                self.failed(error, name, tree)
                self.objects[owner] = owner.__new__(owner)
        return self.objects[owner]

    # Lines

    def quiet(self, frame: FrameType | None) -> bool:
        """Whether no new line ran for QUIET_S seconds, and no import takes the time."""
        if time.monotonic() - self.newest_s < QUIET_S:
            return False
        while frame is not None and "importlib" not in frame.f_code.co_filename:
            frame = frame.f_back
        return frame is None

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != PICO_FILE:
            return None
        if event == "call":
            self.entered.add(frame.f_code)
        elif event == "return" and frame.f_code.co_name == FUNCTION:
            self.left = dict(frame.f_locals)
        if event == "line" or event == "call":
            line = frame.f_lineno - self.shift
            if event == "line" and line > 0 and line not in self.lines:
                self.lines.add(line)
                self.newest_s = time.monotonic()
                self.events.write("line", line=line)
        return self.trace


def raised_here(error: BaseException) -> bool:
    """The fragment's own code raised it, or what the fragment's own code called."""
    place = error.__traceback__.tb_next if error.__traceback__ else None
    return place is not None and place.tb_frame.f_code.co_filename == PICO_FILE


def launching(error: BaseException) -> bool:
    """What was not found is a program, which no file takes the place of."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return any(os.path.basename(file) == "subprocess.py" for file in files)


def shown(thing: Any) -> str:
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))[:120]
    except Exception as error:
        return f"<{type(thing).__name__} whose repr fails: {type(error).__name__}>"


def last_line(error: BaseException, shift: int) -> int | None:
    """The last line of the fragment that took part, in the fragment as given."""
    if isinstance(error, SyntaxError) and error.filename == PICO_FILE:
        return (error.lineno or 0) - shift
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == PICO_FILE]
    return lines[-1] - shift if lines and lines[-1] is not None else None


def execute(code: CodeType, names: dict[str, Any], call: bool) -> None:
    """Run the module; where the fragment became a function, call it to its end."""
    exec(code, names)
    if call:
        finish(names[FUNCTION]())


def wait_briefly() -> None:
    """Shorten the sleeps of programs, of tasks and of threads that wait for each other."""
    sleep, of_task, of_thread = time.sleep, asyncio.sleep, threading.Condition.wait

    def wait(self: threading.Condition, timeout: float | None = None) -> bool:
        return of_thread(self, None if timeout is None else min(timeout, SLEEP_S))

    vars(time)["sleep"] = lambda seconds: sleep(min(float(seconds), SLEEP_S))
    vars(asyncio)["sleep"] = lambda delay, result=None: of_task(min(delay, SLEEP_S), result)
    threading.Condition.wait = wait  # type: ignore[method-assign]


def finish(result: Any) -> None:
    """Run what a call made, a coroutine or a generator, to its end."""
    if inspect.iscoroutine(result):
        asyncio.run(result)
    elif inspect.isasyncgen(result):
        asyncio.run(exhaust(result))
    elif inspect.isgenerator(result):
        for count, _ in enumerate(result):
            if count >= MOST_ITEMS:
                break


async def exhaust(items: Any) -> None:
    async for _ in items:
        pass


def main() -> None:
    with open("job.json", encoding="utf-8") as file:
        job = json.load(file)
    runtime = Runtime(job)
    hooks = {"_n_": runtime.name, "_a_": runtime.attribute, "_c_": runtime.call, "_d_": runtime.decorator}
    vars(builtins).update(hooks)
    finder = Modules(runtime)
    sys.meta_path.append(finder)
    sys.modules[PACKAGE] = module = Absent(PACKAGE)
    module.__dict__["runtime"] = runtime
    flags = __future__.annotations.compiler_flag
    code = compile(job["source"], PICO_FILE, "exec", flags=flags, dont_inherit=True)
    names = {"__name__": "__main__", "__package__": f"{PACKAGE}.a.b.c", "__builtins__": builtins, "__file__": PICO_FILE}
    for part in ("here.a", "here.a.b", "here.a.b.c"):
        sys.modules[part] = finder.create_module(importlib.machinery.ModuleSpec(part, None))
        finder.exec_module(sys.modules[part])
    sys.argv = [PICO_FILE, *job["argv"]]
    threading.settrace(runtime.trace)
    sys.settrace(runtime.trace)
    error: BaseException | None = None
    endless = False
    wait_briefly()
    try:
        with alarm(QUIET_S, Unending, runtime.quiet):
            execute(code, names, job["call"])
    except Unending:
        endless = True
    except BaseException as raised:
        if not isinstance(raised, SystemExit) or raised.code not in (None, 0):
            error = raised
    runtime.events.write(
        "end",
        error=None if error is None else type(error).__name__,
        message="" if error is None else str(error)[:300],
        line=None if error is None else last_line(error, job["shift"]),
        endless=endless,
    )
    if job["calls"]:
        runtime.call_the_rest(names, ast.parse(job["source"]))
    sys.settrace(None)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
