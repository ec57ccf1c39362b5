"""How sequences lie on the devices: whole, or dealt to them (context parallelism)."""
