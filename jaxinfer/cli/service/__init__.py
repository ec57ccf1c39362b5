"""The processes of `jaxinfer serve`: the engine's, the front ends', and their parent."""
