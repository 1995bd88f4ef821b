"""How many files and connections this process may have open.

Every client's connection may need one to the upstream beside it, and the store, the spool and the journal need theirs
whatever clients do. So clients get a share of what there is, and never all of it.
"""

from __future__ import annotations

import resource
from typing import Final

# More than any gateway serves at a time; some systems set no limit at all.
_DESCRIPTORS_MAX: Final = 1 << 20
# Of each three, one is a client's, one goes to the upstream for it, one is for everything else.
_CLIENTS_SHARE: Final = 3


def client_connections_max() -> int:
    """The connections that clients may have at a time. Raises the process's own limit as far as it may first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            wanted = soft
    return max(1, wanted // _CLIENTS_SHARE)
