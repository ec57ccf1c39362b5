"""The engine: its loop over scheduler and device, and what stands beside the plain step."""
