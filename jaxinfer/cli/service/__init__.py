"""The processes of `jaxinfer serve`: one engine, its front ends, and the parent of both."""
