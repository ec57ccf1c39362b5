"""LoRA adapters: their files, their arrays, and the slots on devices that hold some of them."""
