"""The chat page at `/`: static files for a browser, and the routes that serve them."""
