"""What a gateway needs from its host: directories that it can write to, certificates, and descriptors."""

from __future__ import annotations

import resource
import ssl
from typing import Final
from uuid import uuid4

from gateway.app.life import StartError
from gateway.config import Config
from gateway.config.models import ServerTls
from gateway.store.files import make_directory
from gateway.upstream.tls import ask_for_certificates, load_chain

# -- host --------------------------------------------------------------------------------------------------------------


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


# -- descriptors -------------------------------------------------------------------------------------------------------
#
# How many files and connections this process may have open.
#
# Requests need connections to the upstream, and files of the spool, and the store and the journal need descriptors
# whatever clients do. So clients get what is left of the limit, never all of it, and a third of it where little is
# left.

# More than any gateway needs; some systems set no limit.
_DESCRIPTORS_MAX: Final = 1 << 20
# Of three descriptors, one is for a client, one for its upstream connection, one for everything else.
_CLIENTS_SHARE: Final = 3
# An operation has a connection to the upstream and a body in a file, and another body may be on its way.
_FOR_AN_OPERATION: Final = 3
# Store, journal, log, listeners, sinks and operators.
_FOR_THE_REST: Final = 1024


def client_connections_max(in_flight_max: int, passing_max: int) -> int:
    """The connections that clients may have at a time, where so many operations may be in flight, and connections to
    upstreams be in use by what is not protected. First raises the soft limit of this process to the hard one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            wanted = soft
    needed = _FOR_AN_OPERATION * in_flight_max + passing_max + _FOR_THE_REST
    return max(1, wanted // _CLIENTS_SHARE, wanted - needed)
