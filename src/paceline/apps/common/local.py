"""Requests to a page of this machine: those that only another web page of a browser would send are refused."""

from ipaddress import ip_address


def fault(host: str, method: str, kind: str) -> tuple[int, str] | None:
    """(HTTP status, sentence) for a request that is refused, by its headers Host and Content-Type; None for a good one.

    A web page may give its own name the address of this machine (DNS rebinding), so only names of loopback are
    answered. It may send a body of any type but JSON without asking, so a body must be called JSON.
    """
    if host and not loopback(named(host)):
        return 403, f"Host is {named(host)[:100]!r}, but this page answers to loopback names; open it as 127.0.0.1."
    if method == "POST" and kind.partition(";")[0].strip().lower() != "application/json":
        return 400, "The body must be sent as JSON; add the header Content-Type: application/json."
    return None


def named(host: str) -> str:
    """The name in a Host header, without its port."""
    host = host.strip().lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def loopback(name: str) -> bool:
    name = name.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
