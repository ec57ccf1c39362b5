"""Several processes that run one engine: how they start, meet, keep in step and end."""
