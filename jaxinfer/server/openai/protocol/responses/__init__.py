"""The bodies of `/v1/responses`: requests, the items of a conversation, and answers."""
