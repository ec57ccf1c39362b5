"""The runner owns the devices: it packs a step, launches it, and reads its result later."""
