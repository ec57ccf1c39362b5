"""Addresses of clients and of the server itself."""

import ipaddress


def is_loopback(address: str) -> bool:
    """True if a text is an address that only this machine can reach."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
