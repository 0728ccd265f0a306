"""The password of this folder's Prefect servers, which every one of their clients shows.

Whoever may use a server's API runs commands through it, and any page in a browser of this machine
can send requests there.
"""

from __future__ import annotations

import os
import secrets
import tomllib
from contextlib import suppress

from tasks import paths
from tasks.io import replacing

CLIENTS = "PREFECT_API_AUTH_STRING"
SERVERS = "PREFECT_SERVER_API_AUTH_STRING"
PROFILE = paths.RUN / "prefect-profile.toml"
"""The profile of every Prefect command in this folder, as prefect.toml says."""


def password() -> str:
    """`user:password`: that of the environment, else the profile's, which the first call writes."""
    if given := os.environ.get(CLIENTS):
        return given
    with suppress(OSError, KeyError, tomllib.TOMLDecodeError):
        return str(tomllib.loads(PROFILE.read_text(encoding="utf-8"))["profiles"]["rlm"][CLIENTS])
    made = f"rlm:{secrets.token_urlsafe(32)}"
    with replacing(PROFILE) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_text(
            f'active = "rlm"\n\n[profiles.rlm]\n{CLIENTS} = "{made}"\n', encoding="utf-8"
        )
    return made
