"""The engine's deciding half without its models: replay of a decision log, and a simulator for sweeps."""
