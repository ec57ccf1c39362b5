"""The sampler, a file for each part: edits, weights, truncation, draw, log-probabilities."""
