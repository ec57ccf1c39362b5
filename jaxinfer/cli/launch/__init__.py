"""What `jaxinfer launch` needs: a server in the background, and the programs that use it."""
