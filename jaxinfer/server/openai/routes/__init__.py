"""The HTTP routes, each a function from a checked body to an answer."""
