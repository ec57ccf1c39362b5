"""ASGI middleware that every request passes before its route: keys, size limits, HEAD, ids."""
