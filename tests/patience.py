"""How long a test waits for what must come: too long for a loaded machine to fail it, short enough to end a hang."""

PATIENCE_S = 900
"""Seconds. pytest itself ends a test later, so that its own words say what was waited for."""
