"""Reads what a profile recorded: the trace, and the programs that ran."""
