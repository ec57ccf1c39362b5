"""What the host keeps for the slot of each running sequence."""
