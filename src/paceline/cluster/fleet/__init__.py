"""A cluster in simulation: many engines on one virtual clock."""
