"""Scores and measures of a request's tokens: as arrays, as recordings, and which are wanted."""
