"""Readouts: values that a prefill step computes for its rows beside tokens, a file for each."""
