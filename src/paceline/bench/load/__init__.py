"""A load generator for OpenAI-compatible servers.

    arrivals ──▶ drive ──▶ client ══ HTTP ══▶ server
    (when)       (open or    │
    prompts ──▶  closed)     ▼
    (what)                 sse ──▶ answer ──▶ stats ──▶ report, plot
                           (bytes)  (times)   (percentiles, goodput)

`client`, `drive`, `run` and `recorder` do I/O and read clocks; the other files are arithmetic. Nothing here knows of
Paceline's engine: any server will do.
"""
