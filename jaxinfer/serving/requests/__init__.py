"""What a request is, from the call that brings it to the text that leaves it."""
