"""How the bytes of a budget are divided. Pure decisions, made once, before anything is loaded."""
