"""Names that usually are modules, or members of modules: what a fragment lacks because its imports were cut off.

A name becomes a module only where the fragment reads attributes of it and the module has all of them, so that a
variable called `string` or `queue` stays a variable.
"""

import importlib
import importlib.util
import json
import types
from collections.abc import Collection, Sequence
from typing import Any

ALIASES = {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot", "sns": "seaborn", "tf": "tensorflow",
           "nn": "torch.nn", "F": "torch.nn.functional", "sp": "scipy", "sm": "statsmodels.api", "dt": "datetime",
           "ET": "xml.etree.ElementTree", "etree": "xml.etree.ElementTree", "mp": "multiprocessing", "op": "operator",
           "tk": "tkinter", "urllib2": "urllib.request", "Queue": "queue", "cPickle": "pickle",
           "ConfigParser": "configparser", "StringIO": "io", "sa": "sqlalchemy", "nx": "networkx", "mpl": "matplotlib",
           "parse": "urllib.parse"}  # fmt: skip
MEMBERS = {
    "collections": "defaultdict Counter OrderedDict namedtuple deque ChainMap",
    "collections.abc": "Iterable Iterator Mapping MutableMapping Sequence Generator Hashable Sized",
    "pathlib": "Path PurePath PosixPath",
    "datetime": "datetime timedelta date timezone",
    "functools": "partial reduce lru_cache wraps cached_property total_ordering singledispatch cmp_to_key",
    "itertools": "chain product permutations combinations groupby islice zip_longest starmap "
    "takewhile dropwhile accumulate combinations_with_replacement tee",
    "operator": "itemgetter attrgetter methodcaller",
    "time": "sleep perf_counter monotonic strftime strptime",
    "random": "randint choice shuffle uniform randrange",
    "math": "sqrt pi floor ceil sin cos tan radians factorial hypot isnan isclose",
    "copy": "deepcopy",
    "urllib.parse": "urlencode urlparse quote unquote urljoin parse_qs urlsplit quote_plus",
    "urllib.request": "urlopen Request urlretrieve",
    "threading": "Thread Lock RLock Event Timer Semaphore",
    "multiprocessing": "Pool Process cpu_count",
    "concurrent.futures": "ThreadPoolExecutor ProcessPoolExecutor as_completed",
    "enum": "Enum IntEnum Flag auto",
    "dataclasses": "dataclass asdict astuple",
    "typing": "Any List Dict Optional Union Tuple Callable TypeVar Generic NamedTuple cast overload Protocol Literal "
    "TYPE_CHECKING ClassVar Type Set",
    "io": "StringIO BytesIO TextIOWrapper",
    "contextlib": "contextmanager suppress closing ExitStack redirect_stdout nullcontext",
    "abc": "ABC ABCMeta abstractmethod",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "subprocess": "Popen PIPE check_output check_call STDOUT DEVNULL",
    "pprint": "pprint pformat",
    "glob": "iglob",
    "shutil": "copyfile rmtree copytree which",
    "tempfile": "NamedTemporaryFile TemporaryDirectory mkdtemp mkstemp",
    "argparse": "ArgumentParser Namespace",
    "types": "SimpleNamespace ModuleType FunctionType MethodType",
    "timeit": "timeit default_timer",
    "string": "ascii_lowercase ascii_uppercase ascii_letters digits punctuation Template",
    "textwrap": "dedent indent",
    "traceback": "format_exc print_exc",
    "hashlib": "md5 sha1 sha256",
    "inspect": "signature isclass isfunction getmembers getsource",
    "os.path": "basename dirname abspath",
    "unittest": "TestCase",
    "uuid": "uuid4 UUID",
    "numbers": "Number",
    "weakref": "WeakKeyDictionary WeakValueDictionary",
    "bisect": "bisect_left bisect_right insort",
    "heapq": "heappush heappop heapify nlargest nsmallest",
    "html": "unescape",
    "socket": "AF_INET SOCK_STREAM gethostbyname",
    "logging": "getLogger",
}  # fmt: skip
MEMBER_OF = {member: module for module, members in MEMBERS.items() for member in members.split()}


CALLED = "()"
"""Stands among the attributes that are read of a name for its being called."""
MEMBER_VALUES = frozenset({"pi", "ascii_lowercase", "ascii_uppercase", "ascii_letters", "punctuation"})


PICO_BOX_MODULES = ("runtime", "absent", "dummies", "modules", "uncalled")
"""The files of the sandbox's own code."""
OWN_MODULES = frozenset({*PICO_BOX_MODULES, "here"})
"""The sandbox's own, which a fragment never means."""


def usual(name: str, attributes: Collection[str]) -> tuple[Any, list[str]]:
    """What a name usually is where nobody defined it, and the statements that import it. Raises LookupError where it is
    nothing usual. `attributes` are those that the fragment reads of it."""
    called, read = CALLED in attributes, [each for each in attributes if each != CALLED]
    home, module = MEMBER_OF.get(name), ALIASES.get(name)
    if home is not None and (name[0].isupper() or called or name in MEMBER_VALUES):
        found = getattr(importlib.import_module(home), name)
        if all(hasattr(found, each) for each in read):
            return found, [f"from {home} import {name}"]
        module = module or name
    if called and module is None:
        raise LookupError(name)
    module = module or name
    if not read or module in OWN_MODULES or not installed(module):
        raise LookupError(name)
    imports = [f"import {module}" if module == name else f"import {module} as {name}"]
    try:
        made = importlib.import_module(module)
        for each in read:
            if not hasattr(made, each):
                importlib.import_module(f"{module}.{each}")
                imports.append(f"import {module}.{each}")
    except (Exception, SystemExit) as error:
        raise LookupError(name) from error
    if not all(hasattr(made, each) for each in read):
        raise LookupError(name)
    return made, imports


def argument_value(name: str) -> str:
    """A word of a command line by its parameter's name: a folder, a file or a number."""
    if any(part in name for part in ("dir", "root", "folder")):
        return "."
    return "a.txt" if any(part in name for part in ("file", "path", "input", "output", "src", "dst")) else "1"


def arguments_of(callee: Any) -> list[str]:
    """Words for what a parser of the command line requires, where this is its `parse_args`; none where it requires
    nothing, or nothing can be said. Reads nothing of other callables: their attributes may be the fragment's code."""
    if type(callee) is not types.MethodType or type(callee.__self__).__module__ != "argparse":
        return []
    parser: Any = callee.__self__
    words: list[str] = []
    try:
        if callee.__name__ not in ("parse_args", "parse_known_args"):
            return []
        for action in parser._actions:
            if not action.required:
                continue
            count = action.nargs if isinstance(action.nargs, int) else 1
            plain = "1" if action.type in (int, float) else argument_value(action.dest.lower())
            word = str(next(iter(action.choices))) if action.choices else plain
            words += [*action.option_strings[:1], *[word] * count]
    except Exception:  # what a fragment gave the parser can fail in any way
        return []
    return words


def installed(module: str) -> bool:
    """Whether there is such a module. Of one with dots its package is imported, which may raise anything."""
    try:
        return importlib.util.find_spec(module) is not None
    except (Exception, SystemExit):
        return False


MADE_FILES = {
    "csv": "id,name,value,date\n1,Ada,2.5,2024-01-01\n2,Bob,3.5,2024-01-02\n3,Cy,4.0,2024-01-03\n",
    "json": '{"id": 1, "name": "Ada", "value": 2.5, "items": [{"id": 1, "name": "a"}]}\n',
    "jsonl": '{"id": 1, "name": "Ada"}\n{"id": 2, "name": "Bob"}\n',
    "xml": '<root><item id="1"><name>Ada</name></item><item id="2"><name>Bob</name></item></root>\n',
    "html": "<html><head><title>Title</title></head><body><p class='a'>Text <a href='/b'>link</a></p></body></html>\n",
    "ini": "[main]\nname = Ada\nvalue = 1\n", "cfg": "[main]\nname = Ada\nvalue = 1\n",
    "yaml": "name: Ada\nvalue: 1\n", "yml": "name: Ada\nvalue: 1\n", "toml": 'name = "Ada"\nvalue = 1\n',
    "py": "value = 1\n", "tsv": "id\tname\tvalue\n1\tAda\t2.5\n2\tBob\t3.5\n",
}  # fmt: skip
MADE_TABLES = {"csv": ",", "tsv": "\t"}
OF_TEXT = ("name", "path", "file", "folder", "dir", "url", "host", "user", "city", "title", "text", "label", "type",
           "category", "email", "country", "key", "token", "password", "message")  # fmt: skip
"""Parts of names of fields that hold texts."""
OF_TIME = ("date", "day", "time", "month")


def field_value(name: str, number: int) -> str:
    """The value of a field in a made file, by its name: a day, a text or a number."""
    low = name.lower()
    if any(part in low for part in OF_TIME):
        return f"2024-01-0{number}"
    return f"a{number}" if any(part in low for part in OF_TEXT) else str(number)


def typed(text: str) -> Any:
    return int(text) if text.isdigit() else text


ANY_FILE = "1 2 3\n4 5 6\n7 8 9\n"


def content(path: str, fields: Sequence[str] = (), form: str = "") -> str:
    """Text for a file that a fragment reads, by the ending of its name, or by `form` where it has none that is known;
    `fields` are names by which the fragment reads items, which a table has as columns and a JSON object as keys."""
    ending = path.rpartition(".")[2].lower()
    ending = ending if ending in MADE_FILES else form
    if ending in MADE_TABLES:
        mark = MADE_TABLES[ending]
        head, *rows = (line.split(mark) for line in MADE_FILES[ending].splitlines())
        more = [each for each in fields if each not in head]
        rows = [row + [field_value(each, n) for each in more] for n, row in enumerate(rows, 1)]
        return "".join(mark.join(row) + "\n" for row in [head + more, *rows])
    if ending == "json":
        made: dict[str, Any] = json.loads(MADE_FILES[ending])
        added = {each: typed(field_value(each, 1)) for each in fields if each not in made}
        first = {**added, "id": 1, "name": "a"}
        return json.dumps({**made, "items": [first], **added}) + "\n"
    return MADE_FILES.get(ending, ANY_FILE)
