"""The loop around a scheduler and a device, the thread that owns it, and its callers."""
