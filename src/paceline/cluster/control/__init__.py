"""Real engines behind the dispatcher of `cluster.workflow`: a controller, engines over HTTP and on Ray, a router."""
