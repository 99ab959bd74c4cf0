"""Job-shop scheduling: workflows whose calls are bound to instances, all known at once."""
