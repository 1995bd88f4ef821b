"""How many files and connections this process may have open.

Requests need connections to the upstream, and files of the spool, and the store and the journal need descriptors
whatever clients do. So clients get what is left of the limit, never all of it, and a third of it where little is left.
"""

from __future__ import annotations

import resource
from typing import Final

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
