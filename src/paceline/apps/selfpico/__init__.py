"""SelfPiCo (Xue et al., ISSTA 2024): run Python fragments whose names, attributes or calls are not there.

instrument.py   each read and each call of a fragment asks the runtime, on the same lines as before
box/            what runs in the sandbox: the runtime that notices what is missing, and the dummies of 15 types
predict.py      predictors of a missing value: none, a table of types (LExecutor), or a model
table.py        the table: what type a name had where programs ran
fragment.py     one fragment through the sandbox, again where its error can be mended; lines, values, errors
study.py        many fragments under several predictors
"""
