"""How many files and connections this process may have open.

Every client connection may need one to the upstream as well, and the store, the spool and the journal need descriptors
whatever clients do. So clients get a share of the limit, never all of it.
"""

from __future__ import annotations

import resource
from typing import Final

# More than any gateway needs; some systems set no limit.
_DESCRIPTORS_MAX: Final = 1 << 20
# Of three descriptors, one is for a client, one for its upstream connection, one for everything else.
_CLIENTS_SHARE: Final = 3


def client_connections_max() -> int:
    """The connections that clients may have at a time. First raises the soft limit of this process to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            wanted = soft
    return max(1, wanted // _CLIENTS_SHARE)
