"""Many engines: the placement of requests on them."""
