"""Several algorithms on the same federation: planned, run one after the other, put into tables."""
