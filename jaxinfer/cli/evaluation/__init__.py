"""What `jaxinfer evaluate` reads and prints."""
