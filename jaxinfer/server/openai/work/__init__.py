"""Runs work in threads that would block the event loop of a front end."""
