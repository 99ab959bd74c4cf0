"""Text to SQL: a question about a database becomes a query and its table.

guard.py      what may run: one query, read as such by a parser
database.py   SQLite and DuckDB, read-only, with limits of time, rows and bytes
schema.py     tables, columns and keys, as a prompt shows them
retrieve.py   the columns and stored values that a question speaks of
prompts.py    what is asked in each stage
pipeline.py   retrieve, draft in parallel, revise, test, choose
evaluate.py   execution accuracy over a set of questions
page.py       the web page
"""
