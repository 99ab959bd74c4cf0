"""Passes of few rows in each form of the weights, in turns in one process:

    python -m paceline.bench.steps --model DIR [--forms bfloat16,int8,int4] [--rows 1,8] [--context 300] [--seconds 20]

One pass of a kind after the other, again and again; of each the least time is reported, which other processes disturb
least, and the median next to it. `PACELINE_NATIVE=avx2` measures that unit.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from paceline.core.errors import PacelineError
from paceline.core.rows import Rows, RowsBuilder
from paceline.model.decoder import Decoder
from paceline.model.load import load_model

BLOCK_ROWS = 16
TIMED_FORMS = ("bfloat16", "int8", "int4")
FILL_ROWS = 256
"""Rows of a pass while the context is filled."""


@dataclass(slots=True)
class PassTimes:
    """Seconds of the passes of one form with a given number of rows, after the context."""

    form: str
    rows: int
    bytes: int
    taken: list[float]


def load(model: str, form: str, context: int, kv_dtype: str | None) -> Decoder:
    """In `form`, with `context` tokens in its pool."""
    quantize = "none" if form == "bfloat16" else form
    decoder = load_model(model, quantize=quantize, kv_dtype=kv_dtype)
    decoder.allocate(-(-context // BLOCK_ROWS) + 4, BLOCK_ROWS)
    for first in range(0, context, FILL_ROWS):
        decoder.forward(rows_of(min(FILL_ROWS, context - first), first, want=[]))
    return decoder


def rows_of(count: int, base: int, want: list[int] | None = None) -> Rows:
    """A pass over consecutive rows of one request, with logits of all rows, as for a draft."""
    builder = RowsBuilder()
    table = list(range(-(-(base + count) // BLOCK_ROWS)))
    tokens = [(7 * place) % 1000 for place in range(base, base + count)]
    builder.add(tokens, list(range(base, base + count)), table, base, want=list(range(count)) if want is None else want)
    return builder.build()


def measure(decoders: dict[str, Decoder], counts: Sequence[int], context: int, seconds: float) -> list[PassTimes]:
    """In turns, until the time is up, each at least twice."""
    found = [PassTimes(form, count, it.weight_bytes, []) for form, it in decoders.items() for count in counts]
    end = perf_counter() + seconds
    while perf_counter() < end or len(found[0].taken) < 2:
        for times in found:
            rows = rows_of(times.rows, context)
            started = perf_counter()
            decoders[times.form].forward(rows)
            times.taken.append(perf_counter() - started)
    return found


def table(found: Sequence[PassTimes]) -> str:
    """A line for each: least and median milliseconds, GB/s of weights, times one row's, times int8's speed."""
    least = {(it.form, it.rows): min(it.taken) for it in found}
    first = min(it.rows for it in found)
    lines = [
        f"{'form':>9} {'rows':>4} {'MB':>8} {'least ms':>9} {'median':>9} {'GB/s':>6} {'/ 1 row':>8} {'rows/s':>8} "
        f"{'x int8':>7}"
    ]
    for it in found:
        took = least[it.form, it.rows]
        versus = f"{least['int8', it.rows] / took:7.2f}" if ("int8", it.rows) in least else f"{'-':>7}"
        lines.append(
            f"{it.form:>9} {it.rows:4d} {it.bytes / 1e6:8.1f} {took * 1e3:9.3f} {median(it.taken) * 1e3:9.3f} "
            f"{it.bytes / took / 1e9:6.1f} {took / least[it.form, first]:8.2f} {it.rows / took:8.1f} {versus}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.steps", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True, help="directory in Hugging Face layout, or a hub id")
    parser.add_argument("--forms", default=",".join(TIMED_FORMS), help="bfloat16, int8, int4 (default: all)")
    parser.add_argument("--rows", default="1,8", help="rows of a pass (default: 1,8)")
    parser.add_argument("--context", type=int, default=300, help="tokens before them (default: 300)")
    parser.add_argument("--seconds", type=float, default=20, help="of measuring (default: 20)")
    parser.add_argument("--kv-dtype", choices=("auto", "int8"), help="type of the K/V cache")
    args = parser.parse_args()
    forms, counts = args.forms.split(","), [int(n) for n in args.rows.split(",")]
    if not set(forms) <= set(TIMED_FORMS) or min(counts) < 1 or args.context < 1:
        parser.error(f"forms are {', '.join(TIMED_FORMS)}; rows and context at least 1")
    try:
        decoders = {form: load(args.model, form, args.context, args.kv_dtype) for form in forms}
    except PacelineError as error:
        parser.error(str(error))
    print(table(measure(decoders, counts, args.context, args.seconds)))


if __name__ == "__main__":
    main()
