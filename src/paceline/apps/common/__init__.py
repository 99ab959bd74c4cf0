"""What the applications share: typed calls, a graph of tasks, a sandbox, reports, options.

client.py    one server: requests, retries of what is busy, usage, a tape of every call
forms.py     what an answer may be: text, one of some words, a regular expression, JSON
ask.py       a typed call: prompt and form to a value, an outcome and a confidence
dag.py       tasks that wait for one another, with deadlines and a log
sandbox/     a command in a box: limits, no network, no file outside, and what it tried
report.py    a report in HTML and Markdown, with plots
cli.py       the options that every application has, progress bars, --json
"""
