"""Device programs: the steps that run on the devices, their shapes and their lowering."""
