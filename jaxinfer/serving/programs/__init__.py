"""What runs on the devices: the steps, their shapes and how they are lowered."""
