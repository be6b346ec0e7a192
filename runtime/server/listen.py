"""The listening socket; light to import, so that a port in use is told at once."""

from __future__ import annotations

import errno
import socket

from runtime.config import ServerConfig
from runtime.errors import ConfigError

BACKLOG = 2048
"""Connections that may wait to be accepted."""


def open_socket(config: ServerConfig) -> socket.socket:
    """A listening socket: whoever connects before the model is loaded waits for it.

    Raises:
        ConfigError: the address is unknown, not ours, or taken.
    """
    place = f"{config.host}:{config.port}"
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"server.host: {place}: {error.strerror or error}") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        key = "server.host" if error.errno == errno.EADDRNOTAVAIL else "server.port"
        raise ConfigError(f"{key}: {place} cannot be listened on: {error.strerror}") from None
    return made


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    host = listener.getsockname()[0]
    return bool(host == "::1" or host.startswith("127."))
