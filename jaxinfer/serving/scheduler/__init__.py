"""The scheduler: decides which requests run in the next step, and which KV blocks they hold."""
