"""Predict, then run when unsure: a program's output from the model if it is sure, else from the sandbox."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..common.ask import AppSettings
from ..common.client import AppClient
from ..common.sandbox import run
from .ask import predict
from .execute import job
from .extract import trimmed
from .items import SurgeItem, question

UNMEASURED = "the prediction is not trusted: no measured run"


@dataclass(frozen=True)
class ProgramOutput:
    """`output` is what was asked for; `source` is "predicted" or "run"; `predicted` is the model's in either case.

    `agrees` is known where it was run. `status` is the sandbox's ("ok", "failed", "crashed", "stopped").
    """

    output: str
    source: str
    predicted: str
    confidence: float | None
    agrees: bool | None = None
    status: str | None = None
    why: str = ""

    def row(self) -> dict[str, Any]:
        return asdict(self)


async def output(
    client: AppClient,
    files: Mapping[str, str],
    command: str,
    threshold: float | None,
    style: str,
    settings: AppSettings,
    samples: int = 0,
) -> ProgramOutput:
    """The output of a command over files; without a threshold nothing says what a confidence is worth, so it is run.
    Raises SandboxError where it had to be run and no box can be made."""
    item = SurgeItem("asked", "ML", "", question(files, command), "", "exact", files, command)
    predicted, given = await predict(client, item, style, settings, samples)
    sure = given.confidence
    if threshold is not None and given.problem is None and sure is not None and sure >= threshold:
        return ProgramOutput(predicted, "predicted", predicted, sure, why=f"not run; confidence {sure:.3f}")
    if given.problem is not None:
        why = f"no prediction ({given.problem})"
    elif threshold is None:
        why = UNMEASURED
    else:
        why = "no confidence came" if sure is None else f"confidence {sure:.3f} is below {threshold:g}"
    outcome = await run(job(files, command))
    text = trimmed(outcome.text)
    return ProgramOutput(text, "run", predicted, sure, text == predicted, outcome.status, why)
