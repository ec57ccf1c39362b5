"""Where KV blocks go that leave the devices: host memory, then files; and how they come back."""
