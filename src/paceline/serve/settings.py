"""Every setting of the server, once: flags, PACELINE_* names, TOML keys and the table in docs/server.md come from it.

A value is taken from the flag, else from the environment, else from the TOML file, else it is the default. Nothing
here imports more than the standard library, so that `paceline --help` is quick.
"""

import math
import os
import re
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from paceline.core.errors import InputError
from paceline.core.files import text_of
from paceline.core.help import Help

T = TypeVar("T")
ENV_PREFIX = "PACELINE_"
UNIONS = (Union, types.UnionType)
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
MOST_KEY_PARTS = 32
"""Parts of a dotted key in a settings file: the time to read one grows with their square."""
TOML_TOKEN = re.compile(
    r'''"""(?:[^\\]|\\.)*?(?:"""|\Z)|"(?:[^"\\\n]|\\.)*(?:"|\n|\Z)|'''
    r"""'{3}.*?(?:'{3}|\Z)|'[^'\n]*(?:'|\n|\Z)|#[^\n]*|[.=,\n\[\]{}]""",
    re.DOTALL,
)
"""A string, a comment, a dot, or what ends a key."""


def _http(text: str, flag: str | None = None) -> Help:
    return Help(text, "HTTP", flag)


def _limit(text: str) -> Help:
    return Help(text, "Limits")


def _watch(text: str) -> Help:
    return Help(text, "Logs, metrics, traces")


def _cluster(text: str, flag: str | None = None) -> Help:
    return Help(text, "Cluster", flag)


CLUSTER_SETTINGS = ("engines", "max_engines", "ray_address", "engine_cpus")
"""Settings that mean nothing without `cluster`."""
FEWEST_ENGINES, MOST_ENGINES = 2, 1024
"""Engines of a cluster where no number is given, and of the largest one."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What shapes the server around an engine. Seconds, bytes, tokens. Raises InputError for values out of range."""

    host: Annotated[str, _http("Address to listen on; 0.0.0.0 for every interface.")] = "127.0.0.1"
    port: Annotated[int, _http("Port to listen on; 0 for a free one.")] = 8000
    served_model_name: Annotated[
        tuple[str, ...],
        _http(
            "Name of the model in the API; may be repeated: requests may use any of them, answers carry the first. "
            "Default: the last part of its path or id.",
            "--served-model-name",
        ),
    ] = ()
    models: Annotated[
        Path | None, _http("TOML file that names several models, each loaded on its first request: docs/server.md.")
    ] = None
    index: Annotated[
        Path | None,
        _http("Folder that paceline index made: requests may ask for retrieval from it, docs/retrieval.md."),
    ] = None
    index_encoder: Annotated[
        Path | None, _http("The index's encoder. Default: where it was when the index was built.")
    ] = None
    datastore: Annotated[
        Path | None,
        _http("File that paceline index --model made: requests may ask for neighbours from it (KNN-LM)."),
    ] = None
    api_keys: Annotated[
        tuple[str, ...],
        _http("Key that clients must send; may be repeated. Without one, anyone may call.", "--api-key"),
    ] = ()
    api_key_file: Annotated[Path | None, _http("File of API keys, one a line; # begins a comment.")] = None
    router_keys: Annotated[
        tuple[str, ...],
        _http(
            "Key of a router (its --engine-key). The router names the client of each request, and each gets a share.",
            "--router-key",
        ),
    ] = ()
    operator_keys: Annotated[
        tuple[str, ...],
        _http(
            "Key of the operator. Where one is given, or several API keys, only it may change a cluster.",
            "--operator-key",
        ),
    ] = ()
    open_probes: Annotated[bool, _http("Answer /health, /ready and /metrics without a key.")] = True
    allowed_hosts: Annotated[
        tuple[str, ...],
        _http(
            "Host header to accept in addition to loopback names; may be repeated, * for any. Checked only without API "
            "keys, and beyond loopback only if one is given.",
            "--allowed-host",
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...], _http("Origin whose web pages may call the API; may be repeated, * for any.", "--cors-origin")
    ] = ()
    tls_cert: Annotated[Path | None, _http("PEM file of the certificate chain; switches to HTTPS.")] = None
    tls_key: Annotated[Path | None, _http("PEM file of the certificate's private key.")] = None
    queue_limit: Annotated[int, _limit("Samples that may wait beyond the running ones; further ones get 429.")] = 256
    request_timeout: Annotated[float, _limit("Seconds until an unfinished request is ended; 0 for never.")] = 600.0
    lora_root: Annotated[
        Path | None,
        _http("Directory below which adapters may be loaded by /v1/load_lora_adapter. Default: not over HTTP."),
    ] = None
    max_body_bytes: Annotated[int, _limit("Maximum size of a request body, in bytes; a larger one gets 413.")] = (
        4 * 2**20
    )
    max_prompt_tokens: Annotated[int | None, _limit("Maximum tokens of a prompt. Default: what the context holds.")] = (
        None
    )
    max_output_tokens: Annotated[
        int | None,
        _limit("Maximum tokens of one sample; asking for more is an error. Default: what the context holds."),
    ] = None
    max_choices: Annotated[int, _limit("Maximum number of samples of one request, over all its prompts.")] = 128
    unknown_parameters: Annotated[
        Literal["refuse", "warn"],
        _http("What happens to parameters that no end point knows. refuse: 400; warn: a line in the log, no effect."),
    ] = "refuse"
    response_store_bytes: Annotated[
        int, _limit("Bytes of stored answers of /v1/responses; the least recently used are dropped first.")
    ] = 64 * 2**20
    pooling: Annotated[
        Literal["mean", "last"] | None,
        _http("How /v1/embeddings pools hidden states into one vector. Default: as the request says, else mean."),
    ] = None
    max_connections: Annotated[
        int,
        _limit("Maximum number of connections; 0: as many as open files allow. At the limit an idle one is closed."),
    ] = 0
    max_connections_per_address: Annotated[
        int,
        _limit("Maximum number of connections of one address; 0: half of all. Behind a proxy, set what it may open."),
    ] = 0
    head_timeout: Annotated[float, _limit("Seconds that a connection has for the head of a request.")] = 10.0
    body_timeout: Annotated[float, _limit("Seconds that a request has for its body; 0 for request_timeout alone.")] = (
        60.0
    )
    min_body_rate: Annotated[
        int, _limit("Minimum rate of a request body in bytes a second, after its first 5 s; 0: any rate.")
    ] = 4096
    max_nodes: Annotated[int, _limit("Maximum number of drafted tokens a step that a request may ask for.")] = 32
    shared_cache: Annotated[
        bool,
        _limit("Let several API keys share cached prefixes and what drafters have learned of their texts."),
    ] = False
    stall_timeout: Annotated[
        float, _limit("Seconds that an engine with work may take no step before /health turns 503; 0 for never.")
    ] = 60.0
    drain_timeout: Annotated[
        float, _limit("Seconds that running requests are given after SIGTERM before they are ended.")
    ] = 30.0
    log_format: Annotated[
        Literal["auto", "human", "json"], _watch("One JSON object a line, or text; auto: text on a terminal.")
    ] = "auto"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _watch("Lowest severity that is logged.")] = (
        "info"
    )
    log_prompts: Annotated[bool, _watch("Log the text of prompts and answers, too.")] = False
    decision_log: Annotated[
        Path | None,
        _watch("Log every decision and its inputs to this file, for paceline simulate. It holds prompts' tokens."),
    ] = None
    kv_events_config: Annotated[
        str | None,
        _watch(
            "Publish what the prefix cache holds, with its tokens, to routers; JSON as in vLLM's option of this name."
        ),
    ] = None
    otel_endpoint: Annotated[
        str | None, _watch("Send OpenTelemetry traces to this OTLP/HTTP address, such as http://host:4318/v1/traces.")
    ] = None
    cluster: Annotated[
        bool, _cluster("Serve the model by several engines, each in a process of its own, on Ray: docs/cluster.md.")
    ] = False
    engines: Annotated[
        int | None, _cluster("Number of engines of a cluster; with max_engines the minimum. Default: 2.")
    ] = None
    max_engines: Annotated[
        int | None,
        _cluster("Maximum number of engines; their number then follows the load. Default: as engines, fixed."),
    ] = None
    ray_address: Annotated[
        str | None, _cluster("Join the Ray cluster there. Default: one on this machine.", "--address")
    ] = None
    engine_cpus: Annotated[float, _cluster("CPU cores that Ray reserves for each engine of a cluster; 0: none.")] = 0.0

    def __post_init__(self) -> None:
        def check(ok: bool, name: str, want: str) -> None:
            if not ok:
                raise InputError(f"{name} is {getattr(self, name)!r}, but it must be {want}.")

        check(0 <= self.port < 2**16, "port", "in [0, 65535]")
        for name, least in (
            ("queue_limit", 0),
            ("request_timeout", 0),
            ("drain_timeout", 0),
            ("max_body_bytes", 1),
            ("max_choices", 1),
            ("response_store_bytes", 0),
            ("max_connections", 0),
            ("max_connections_per_address", 0),
            ("head_timeout", 0.01),
            ("body_timeout", 0),
            ("min_body_rate", 0),
            ("max_nodes", 0),
            ("stall_timeout", 0),
        ):
            check(getattr(self, name) >= least, name, f"at least {least}")
        for name in ("max_prompt_tokens", "max_output_tokens"):
            check(getattr(self, name) is None or getattr(self, name) >= 1, name, "at least 1")
        for name in ("request_timeout", "head_timeout", "body_timeout", "stall_timeout", "drain_timeout"):
            check(math.isfinite(getattr(self, name)), name, "a finite number")
        least = FEWEST_ENGINES if self.engines is None else self.engines
        check(1 <= least <= MOST_ENGINES, "engines", f"in [1, {MOST_ENGINES}]")
        most = least if self.max_engines is None else self.max_engines
        check(most <= MOST_ENGINES, "max_engines", f"at most {MOST_ENGINES}")
        check(least <= most, "max_engines", f"at least engines, which is {least}")
        check(0 <= self.engine_cpus <= MOST_ENGINES, "engine_cpus", f"in [0, {MOST_ENGINES}]")
        for name in ("api_keys", "router_keys", "operator_keys", "cors_origins", "served_model_name", "allowed_hosts"):
            check(all(value.strip() for value in getattr(self, name)), name, "texts that are not empty")
        if self.models is not None and self.served_model_name:
            raise InputError("served_model_name is of one model, but models names several; give one of the two.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InputError("tls_cert and tls_key belong together; give both or neither.")

    @property
    def parted(self) -> bool:
        """Are there several clients, who must not take one another's room: keys, or addresses?"""
        loopback = self.host in ("localhost", "::1") or self.host.startswith("127.")
        keyed = len(self.api_keys) > 1 or self.api_key_file is not None
        return keyed or bool(self.router_keys) or not loopback

    def keys(self) -> tuple[str, ...]:
        """The keys given, of all kinds, and the file's. InputError when it cannot be read or has none."""
        given = (*self.api_keys, *self.router_keys, *self.operator_keys)
        if self.api_key_file is None:
            return carried(given)
        lines = (line.split("#")[0].strip() for line in text_of(self.api_key_file, "api_key_file").splitlines())
        found = tuple(line for line in lines if line)
        if not found:
            raise InputError(f"api_key_file {self.api_key_file} holds no key; write one a line, or leave it out.")
        return carried((*given, *found))


MOST_KEY_CHARS = 4096
"""Length limit of an API key: no client can send a longer one."""


def carried(keys: tuple[str, ...]) -> tuple[str, ...]:
    """The keys. Raises InputError for one that no header can carry."""
    for number, key in enumerate(keys):
        if len(key) > MOST_KEY_CHARS:
            message = (
                f"API key {number + 1} has {len(key)} characters, more than a header carries; is it the right file?"
            )
            raise InputError(message)
        if not key.strip().isprintable():
            raise InputError(
                f"API key {number + 1} has characters that a header cannot carry; give it as it was issued."
            )
    return keys


@dataclass(frozen=True, slots=True)
class SettingEntry:
    """One setting as the command line, the layers and the docs see it."""

    name: str
    type: Any
    default: Any
    help: Help

    @classmethod
    def of(cls, field: "Field[Any]", hint: Any) -> "SettingEntry":
        kind, *extras = get_args(hint)
        return cls(field.name, kind, field.default, next(e for e in extras if isinstance(e, Help)))

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        words = self.name.replace("_", "-")
        return f"--{words}/--no-{words}" if self.type is bool else self.help.flag or f"--{words}"


def entries(cls: type = Settings) -> Iterator[SettingEntry]:
    """The settings of a dataclass whose fields are `Annotated[type, Help]`."""
    hints = get_type_hints(cls, include_extras=True)
    yield from (SettingEntry.of(field, hints[field.name]) for field in fields(cls))


def layered(cls: type[T], flags: Mapping[str, Any], environ: Mapping[str, str], table: Mapping[str, Any]) -> T:
    """A frozen dataclass of settings from its layers, the strongest first; every layer names only what it sets.

    Names in `flags` and `table` are the fields'; InputError for a wrong type, naming the layer.
    """
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        name, kind = field.name, hints[field.name]
        env = ENV_PREFIX + name.upper()
        if name in flags:
            values[name] = _whole(flags[name], kind)
        elif environ.get(env):
            values[name] = parse(environ[env], kind, env)
        elif name in table:
            values[name] = typed(table[name], kind, f"{name} in the settings file")
        elif _required(field):
            raise InputError(f"{name} is not set; give --{name.replace('_', '-')} or {env}.")
    return cls(**values)


def _required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _whole(value: Any, kind: Any) -> Any:
    return tuple(value) if get_origin(kind) is tuple else value


ADAPTERS_COMMA = r",(?!draft=)"
"""Between adapters in a variable: what follows `,draft=` is the own draft of the adapter before it."""


def parse(text: str, kind: Any, where: str) -> Any:
    """A value of `kind` from text; lists are separated by commas."""
    if plain(kind) is bool:
        if text.lower() not in TRUE + FALSE:
            raise InputError(f"{where} is {text!r}, but it must be true or false.")
        return text.lower() in TRUE
    if get_origin(kind) is tuple:
        parts = re.split(ADAPTERS_COMMA if where == f"{ENV_PREFIX}LORA" else ",", text)
        return typed([part.strip() for part in parts if part.strip()], kind, where)
    if plain(kind) in (int, float):
        try:
            return plain(kind)(text)
        except ValueError:
            raise InputError(f"{where} is {text!r}, but it must be {_words(kind)}.") from None
    return typed(text, kind, where)


def typed(value: Any, kind: Any, where: str) -> Any:
    """`value`, as TOML has it, as `kind`; InputError when it is of another type."""
    for one in get_args(kind) if get_origin(kind) in UNIONS else (kind,):
        if (made := fitted(value, one)) is not None:
            return made
    raise InputError(f"{where} is {value!r}, but it must be {_words(kind)}.")


def fitted(value: Any, kind: Any) -> Any:
    """`value` as this one kind; None: it is of another."""
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else None
    if get_origin(kind) is tuple:
        return tuple(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else None
    if kind is Path:
        return Path(value) if isinstance(value, str) else None
    if kind is float:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    ok = kind in (bool, int, str) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return value if ok else None


def plain(kind: Any) -> Any:
    """`T` of `T | None`, and of several the first."""
    if get_origin(kind) in UNIONS:
        return next(a for a in get_args(kind) if a is not type(None))
    return kind


def _words(kind: Any) -> str:
    one = plain(kind)
    if get_origin(one) is Literal:
        return "one of " + ", ".join(get_args(one))
    if get_origin(one) is tuple:
        return "a list of texts"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}[one]


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a settings file. InputError when it cannot be read or is no TOML."""
    text = text_of(path, "config")
    if longest_key(text) > MOST_KEY_PARTS:
        raise InputError(f"The settings file {path} has a key of more than {MOST_KEY_PARTS} parts; make it flatter.")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InputError(f"The settings file {path} is nested too deeply; make it flatter.") from None
    except InputError:
        raise
    except ValueError as error:  # also numbers of too many digits
        if "twice" in str(error) or "overwrite" in str(error):
            raise InputError(f"The settings file {path} says a thing twice ({error}); say it once.") from None
        raise InputError(f"The settings file {path} is not TOML ({error}).") from None


def longest_key(text: str) -> int:
    """Parts of the longest dotted key of a TOML text, in one pass over it. Of a text that is no TOML, as far as it is
    one."""
    parts = most = 1
    for token in TOML_TOKEN.finditer(text):
        first = token[0][0]
        if first == ".":
            parts += 1
            most = max(most, parts)
        elif first in "=,\n[]{}":
            parts = 1
    return most


def load(cls: type[T], flags: Mapping[str, Any], path: Path | None, others: tuple[type, ...] = ()) -> T:
    """Settings of `cls` from flags, this process's environment and a TOML file, in which the fields of `others` may
    stand, too. Raises InputError for an unknown key."""
    table = read_toml(path) if path is not None else {}
    known = {f.name for c in (cls, *others) for f in fields(c)}
    unknown = sorted(set(table) - known)
    if unknown:
        raise InputError(f"Unknown setting {unknown[0]!r} in {path}; known are {', '.join(sorted(known))}.")
    return layered(cls, flags, os.environ, table)


def table() -> str:
    """The settings as the Markdown table of docs/server.md."""
    lines = ["| flag | environment and TOML | default | what it does |", "|---|---|---|---|"]
    for entry in entries():
        names = f"`{entry.env}`, `{entry.name}`"
        lines.append(f"| `{entry.flag}` | {names} | {_shown(entry.default)} | {entry.help.text} |")
    return "\n".join(lines) + "\n"


def _shown(default: Any) -> str:
    if default in (None, ()):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"
