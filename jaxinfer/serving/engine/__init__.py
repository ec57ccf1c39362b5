"""The engine: its loop over scheduler and device, its thread, and blocking and async callers."""
