"""The wire to callers: aiohttp parses their requests, and replies become bytes.

`server` has the connections, and shakes hands over TLS. They come by way of `arrivals`. `connection` is one connection
from a client, a subclass of aiohttp's, with the `limits` of the edge; `budget` bounds what waits in memory for all
clients together, and `reader` is about clients that are slow to read. `handler` answers each request by one coroutine,
once `request` has looked whether it is ambiguous. `exchange` is one request and the writing of its reply, which `reply`
frames. `passthrough` forwards what no route protects, as a `tunnel` after an upgrade.
"""
