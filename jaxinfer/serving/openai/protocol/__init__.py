"""The bodies of requests and answers."""
