"""What drafters that look a text up share: when a node pays, and how rates of being right are kept."""

from paceline.core.plan import MinChance

RATE_MIN_CHANCE = MinChance(0.06)
"""A node is drafted while the chance that it is kept is at least this, unless the planner knows better: a row beyond
the first costs 1-3 % of a step."""
STAMINA = 0.8
"""Least chance, once a guess was right, that the next one of the same draft is."""
RATE_DECAY = 0.95
"""Weight of a rate's past at each new observation."""
FIRST_TRIES = {True: 3.0, False: 20.0}
"""A rate starts as one hit in this many tries, for greedy requests and for others. A sampled text repeats itself less:
its rates start below RATE_MIN_CHANCE, so nothing is drafted until a guess would have been right."""
