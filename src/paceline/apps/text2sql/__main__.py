"""`python -m paceline.apps.text2sql QUESTION --db FILE`."""

from .command import app

app(prog_name="python -m paceline.apps.text2sql")
