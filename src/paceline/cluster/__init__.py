"""Many engines: who runs which request, and where."""
