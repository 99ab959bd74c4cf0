"""Programs that use a server of OpenAI's protocol over HTTP, as anyone could; nothing here imports the engine."""
