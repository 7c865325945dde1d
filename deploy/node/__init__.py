"""The resident node.

One process holds the node's key: it asks the SuperLink for messages (`fleet`), checks what a run
may do (`resident`) and never executes code of a run. That is what the worker does (`worker`), a
process that stays warm between messages (`warm`) and may belong to another user (`executor`).
"""
