"""Programs of a pipeline: one for each stage, and calls that run them in turn."""
