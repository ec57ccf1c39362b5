"""Traces the plain path and writes what it runs into docs/reading.md and README.md."""
