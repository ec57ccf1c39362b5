"""The tables that `jaxinfer plan` prints."""
