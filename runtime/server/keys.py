"""API keys: read once from a file, compared in constant time, never shown."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from runtime.errors import ConfigError

_BEARER = "bearer "


class ApiKeys:
    """Which keys open the door.

    Args:
        keys: none at all opens it to everyone.
    """

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def from_file(cls, path: str | None) -> ApiKeys:
        """A key per line; empty lines and those that begin with # do not count.

        Raises:
            ConfigError: a file that cannot be read or holds no key.
        """
        if path is None:
            return cls([])
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigError(f"server.api_key_file: {path} cannot be read: {why}") from None
        lines = (line.strip() for line in text.splitlines())
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise ConfigError(f"server.api_key_file: {path} holds no key")
        return cls(keys)

    @property
    def are_needed(self) -> bool:
        return bool(self._digests)

    def admits(self, authorization: str | None) -> bool:
        """Whether this Authorization header holds one of the keys; every key is compared."""
        if not self._digests:
            return True
        given = authorization or ""
        if given[: len(_BEARER)].lower() != _BEARER:
            return False
        digest = _digest(given[len(_BEARER) :].strip())
        found = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(found)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
