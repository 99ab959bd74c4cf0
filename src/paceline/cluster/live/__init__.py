"""A live cluster: engines in processes of their own behind one HTTP API."""
