"""What `jaxinfer plan` prints and draws."""
