"""What is read and changed of activations: as a plan takes it, on the devices, and in calls."""
