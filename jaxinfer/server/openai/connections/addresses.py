"""Addresses of clients, proxies and the server itself."""

import ipaddress


def is_loopback(address: str) -> bool:
    """True if a text is an address that only this machine can reach."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def check_network(name: str, text: str) -> None:
    """Refuse what is neither an address nor a network.

    Raises:
        ValueError: names it.
    """
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(
            f"{name}: {text!r} is neither an address, such as 10.0.0.7, nor a network, such as "
            "10.0.0.0/8"
        ) from None
