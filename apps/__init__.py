"""Programs on top of an OpenAI-compatible HTTP API; they import nothing of the engine."""
