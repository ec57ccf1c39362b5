"""Answers that a prefill alone gives: vectors, choices, relevance, log-probabilities."""
