"""The scheduler's side of prefix tiers: what is copied out, and which requests wait for blocks."""
