"""What every request passes before a route sees it: pure ASGI."""
