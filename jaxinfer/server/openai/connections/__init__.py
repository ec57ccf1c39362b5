"""The connections of a front end: HTTP/1.1 by uvicorn and h11, within limits."""
