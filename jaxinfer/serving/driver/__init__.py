"""The one thread that touches an engine, its inbox, and blocking and asynchronous callers."""
