"""What a gateway needs from its host: directories that it can write to, and a certificate."""

from __future__ import annotations

import ssl
from uuid import uuid4

from gateway.app.life import StartError
from gateway.config import Config
from gateway.config.models import ServerTls
from gateway.store.directories import make_directory
from gateway.upstream.connect import ask_for_certificates, load_chain


def make_state_dir(config: Config) -> None:
    """Make the directories that the gateway writes to, readable by its user alone. Raises `StartError`."""
    spool = config.state_dir / "spool"
    try:
        if not config.state_dir.exists():
            # Also syncs its entry in the parent: acknowledged outcomes may be stored in it.
            make_directory(config.state_dir)
        spool.mkdir(mode=0o700, exist_ok=True)
        probe = spool / f".probe-{uuid4().hex}"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise StartError(
            f"state_dir {config.state_dir} cannot be written to: {error.strerror}. Make it writable for this user, or "
            "name another directory."
        ) from error


def server_tls(tls: ServerTls | None) -> ssl.SSLContext | None:
    """The TLS context of the listener; None for plain HTTP. Raises `StartError`."""
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        load_chain(context, tls.cert, tls.key)
        if tls.client_ca is not None:
            ask_for_certificates(context, tls.client_ca, is_required=tls.client_certificate == "required")
    except OSError as error:
        raise StartError(f"the files of listen.tls cannot be used: {error}") from error
    return context
