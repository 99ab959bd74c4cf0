"""What a server is told."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of the server."""

    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str | None = None
    """Name under which the model is served; None: the last part of its path."""
    max_choices: int = 128
    """Most texts that one request may ask for (prompts times n)."""
