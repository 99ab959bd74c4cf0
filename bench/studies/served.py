"""What a record of answers says of the server that gave them."""

import argparse
from typing import Any

from paceline.apps.common.client import AppClient


def add_served(parser: argparse.ArgumentParser) -> None:
    """Add the word for what a server does not tell."""
    told = "how the model is served, such as int4; kept in the record, which is refused with another"
    parser.add_argument("--served-as", metavar="TEXT", help=told)


async def served(client: AppClient, given: argparse.Namespace) -> dict[str, Any]:
    """The model's name, the draft model's, and what the command says of them."""
    return {"model": client.model, "draft": (await client.stats()).get("draft"), "served as": given.served_as}
