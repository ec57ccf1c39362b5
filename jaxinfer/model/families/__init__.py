"""Model families, a file each: what config.json says, kinds of layers, parts on a device."""
