"""Reads a profile's recording: the trace, and the programs that ran."""
