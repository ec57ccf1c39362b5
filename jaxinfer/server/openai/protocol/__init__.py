"""The bodies of HTTP requests and answers, as pydantic models and typed dictionaries."""
