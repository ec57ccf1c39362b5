"""What a prefill step computes for its rows beside tokens: a file each."""
