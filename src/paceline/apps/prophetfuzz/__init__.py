"""ProphetFuzz (Wang et al., CCS 2024): from a program's manual to risky combinations of options, and a fuzzer that
tries them.

    manual.py       a man page's options, with what is said of each
    constraints.py  which options exclude or need one another: many samples, each relation voted on again
    combine.py      combinations predicted to be risky, repaired to keep the constraints, counted
    assemble.py     a command and seed files for each combination
    campaign.py     AFL++ over all commands in the sandbox, slice by slice; crashes grouped by their stacks
    box/            what runs in the sandbox
    planted/        a program with ten planted bugs that need options, and its man page

For programs that are yours, or that you may test.
"""
