"""The inference engine: host-side scheduling around jitted prefill and decode steps."""
