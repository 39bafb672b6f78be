"""One program for each engine, run by the interpreter of its own environment."""
