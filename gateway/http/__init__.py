"""The wire to callers: aiohttp parses their requests, and replies become bytes.

`server` accepts connections, and shakes hands over TLS. `connection` is one connection from a client, a subclass of
aiohttp's, with the limits of the edge. `handler` answers each request by one coroutine, and writes its reply.
`passthrough` forwards what no route protects, and bytes both ways after an upgrade.

Entered by server.Edge, handler.Handler, passthrough.Passthrough.
Imports config, core, observe, protect, upstream.
"""
