"""The processes of `jaxinfer profile`."""
