"""What a gateway needs from its host: directories that it can write to, certificates, key sets, and descriptors.

Checks them for `check` as a start and as peers would, says whether a certificate was changed, and when it expires. What
reads a kind of file is loaded where the configuration names one: a `check` of others is quick.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from gateway.config import Config
from gateway.config.checks import Notice
from gateway.config.leaf import PLACEHOLDER_DIRECTORY
from gateway.config.models import KafkaSink, ServerTls
from gateway.config.route import ComposedScope, TokenIssuer, token_issuers

if TYPE_CHECKING:
    import ssl

# -- host --------------------------------------------------------------------------------------------------------------


def make_state_dir(config: Config) -> None:
    """Make the directories that the gateway writes to, readable by its user alone. Raises `StartError`."""
    from gateway.app.life import StartError
    from gateway.store.files import make_directory

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
    import ssl

    from gateway.app.life import StartError
    from gateway.upstream.connect import ask_for_certificates, load_chain

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
    upstreams be in use by what is not protected. First raises the soft limit of this process to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            wanted = soft
    needed = _FOR_AN_OPERATION * in_flight_max + passing_max + _FOR_THE_REST
    return max(1, wanted // _CLIENTS_SHARE, wanted - needed)


# -- files -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Files:
    path: str
    cert: Path | None
    key: Path | None
    ca: Path | None


Stamp = tuple[int, int, int] | None
"""Size, inode and time of change of a file, behind all symbolic links; None where there is none."""


def stamp_of(path: Path | None) -> Stamp:
    """By what a file is recognised that was written anew, or that a link leads to now (Kubernetes moves links)."""
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_ino, status.st_mtime_ns


def stamps_of(config: Config) -> dict[Path, Stamp]:
    """The stamps of the TLS files that a reload reads anew."""
    return {
        path: stamp_of(path)
        for files in _named(config)
        for path in (files.cert, files.key, files.ca)
        if path is not None
    }


def expiries_of(config: Config) -> dict[str, float]:
    """When the first certificate of each use expires, as Unix time; nothing of files that cannot be read."""
    from gateway.core.identity.caller import first_expiry

    found: dict[str, float] = {}
    for files in _named(config):
        kind = "listen" if files.path == "listen.tls" else "upstream"
        authority = "client_ca" if kind == "listen" else "ca"
        for use, path in ((kind, files.cert), (authority, files.ca)):
            if path is None:
                continue
            with suppress(OSError):
                at_seconds = first_expiry(path.read_bytes())
                if at_seconds is not None:
                    found[use] = min(found.get(use, at_seconds), at_seconds)
    return found


def tls_remarks(config: Config) -> list[Notice]:
    """What is wrong with the files, and which of them this user may not read."""
    return [
        *(remark for files in dict.fromkeys(_named(config)) for remark in _remarks(files)),
        *(remark for path, issuer in _issuers(config) for remark in _of_key_set(f"{path}.keys", issuer)),
    ]


def state_dir_remarks(config: Config) -> list[Notice]:
    """Why a gateway could not write to `state_dir`, or this user cannot see it."""
    directory = config.state_dir
    if directory.is_relative_to(PLACEHOLDER_DIRECTORY):
        return []
    # What is missing is made in the nearest directory that is there.
    there = next(each for each in (directory, *directory.parents) if each.exists() or each.is_symlink())
    if not there.is_dir():
        return [Notice("state_dir", f"{there} is not a directory", is_fault=True)]
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        return [Notice("state_dir", f"{there} is on a file system that is mounted read-only", is_fault=True)]
    if not os.access(there, os.W_OK | os.X_OK):
        return [Notice("state_dir", f"{there} was not checked: this user may not write to it")]
    return []


def _named(config: Config) -> Iterator[_Files]:
    if (tls := config.listen.tls) is not None:
        yield _Files("listen.tls", tls.cert, tls.key, tls.client_ca)
    for index, route in enumerate(config.routes):
        for service in route.authorities:
            if service.ca is not None:
                place = "authorize" if route.authorize and service is route.authorize.forward_auth else "scope"
                yield _Files(f"routes[{index}].{place}.forward_auth.ca", None, None, service.ca)
    upstreams = [("upstream.tls", config.upstream)]
    upstreams += [
        (f"routes[{index}].upstream.tls", config.upstream_for(route))
        for index, route in enumerate(config.routes)
        if "tls" in route.upstream.model_fields_set
    ]
    tls_by_path = [(path, upstream.tls) for path, upstream in upstreams]
    if config.regions is not None:
        tls_by_path += [(f"regions.homes[{index}].tls", home.tls) for index, home in enumerate(config.regions.homes)]
    for path, tls_out in tls_by_path:
        if tls_out is not None:
            yield _Files(path, tls_out.cert, tls_out.key, tls_out.ca)
    for path, issuer in _issuers(config):
        if issuer.ca is not None:
            yield _Files(f"{path}.ca", None, None, issuer.ca)
    for index, sink in enumerate(config.events.sinks):
        if isinstance(sink, KafkaSink) and sink.ca is not None:
            yield _Files(f"events.sinks[{index}]", None, None, sink.ca)


def _issuers(config: Config) -> Iterator[tuple[str, TokenIssuer]]:
    """The issuers of all tokens, and where they are written; without their places in a list."""
    for index, route in enumerate(config.routes):
        place = "scope.compose" if isinstance(route.scope, ComposedScope) else "scope"
        for issuer in token_issuers(route.scope):
            yield f"routes[{index}].{place}.jwt", issuer
    if config.admin.sign_in is not None and config.admin.sign_in.jwt is not None:
        yield "admin.sign_in.jwt", config.admin.sign_in.jwt


def _of_key_set(path: str, issuer: TokenIssuer) -> Iterator[Notice]:
    """What is wrong with the file that has an issuer's keys."""
    if not isinstance(issuer.keys, str) or issuer.is_fetched:
        return
    from gateway.callers import KeySetInvalid, read_key_file

    file = Path(issuer.keys)
    if file.exists() and not os.access(file, os.R_OK):
        yield Notice(path, f"{file} was not checked: this user may not read it")
        return
    try:
        read_key_file(file)
    except KeySetInvalid as error:
        yield Notice(path, f"{file}: {error}", is_fault=True)
    except OSError as error:
        yield Notice(path, f"{file}: {error.strerror}", is_fault=True)


def _remarks(files: _Files) -> Iterator[Notice]:
    paths = [path for path in (files.cert, files.key, files.ca) if path is not None]
    # The user that checks is often not the one that serves, and must not read its keys.
    unreadable = [path for path in paths if path.exists() and not os.access(path, os.R_OK)]
    for path in unreadable:
        yield Notice(files.path, f"{path} was not checked: this user may not read it")
    if unreadable or any(path.is_relative_to(PLACEHOLDER_DIRECTORY) for path in paths):
        return
    from gateway.upstream.connect import PemError, check_dates, client_context

    try:
        if files.ca is not None:
            client_context(files.ca)
        if files.cert is not None and files.key is not None:
            check_dates(files.cert, files.key)
    except PemError as error:
        yield Notice(files.path, str(error), is_fault=True)
