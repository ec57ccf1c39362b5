"""Where KV blocks go that leave the prefix cache: host memory, and what lies behind it."""
