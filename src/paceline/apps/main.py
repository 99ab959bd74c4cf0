"""`paceline-apps`: one subcommand for each application. An application is a row of APP_COMMANDS and a folder."""

import sys
from importlib import import_module
from importlib.util import find_spec

APP_COMMANDS = {
    "selfpico": (
        "selfpico.command",
        "Run Python fragments whose names are undefined: values are guessed, errors found.",
    ),
    "prophetfuzz": ("prophetfuzz.command", "Predict risky option combinations from a man page, and fuzz them."),
    "surge": ("surge.command", "Predict what programs print, and score it by running them."),
    "tsci": ("tsci.command", "Forecast a time series of a CSV file, with models chosen, weighed and reported."),
    "text2sql": (
        "text2sql.command",
        "Answer questions about a database, or CSV and Parquet files, by queries that only read.",
    ),
    "quantagent": ("quantagent.command", "Analyse bars of prices, decide, back-test; a demonstration, no advice."),
}
"""Name: (module below this package with a typer application `app`, one line of help)."""


def present() -> dict[str, tuple[str, str]]:
    """The applications that are here."""
    return {name: row for name, row in APP_COMMANDS.items() if find_spec(f"{__package__}.{row[0].split('.')[0]}")}


def usage() -> str:
    rows = "\n".join(f"  {name:<12} {line}" for name, (_, line) in present().items())
    return f"Usage: paceline-apps COMMAND ...\n\nEach asks a server of OpenAI's protocol (--url).\n\n{rows}\n"


def main() -> None:
    """Run one application; its heavy parts are imported only then."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    commands = present()
    if name in ("--help", "-h"):
        print(usage())
        return
    if name not in commands:
        sys.exit(f"paceline-apps has no {name!r}; it has {', '.join(commands)}.")
    try:
        app = import_module(f".{commands[name][0]}", __package__).app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "paceline":
            raise
        sys.exit(f"{name} needs {error.name}: pip install 'paceline[apps]'.")
    app(args=sys.argv[2:], prog_name=f"paceline-apps {name}")


if __name__ == "__main__":
    main()
