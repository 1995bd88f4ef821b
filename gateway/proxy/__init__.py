"""What happens to a request. The modules, in the order in which it meets them:

*The edge.* `server` listens, and `listening` says why it cannot; `handshakes` are those of TLS. `client_connection` is
one connection from a client (`hop`: from whom). It reads with `request_parser` and `chunks`, and holds a body that
still arrives in `client_body`.
`request_handler` gives each request to whoever answers it, once `examining` has asked `strictness` whether it is
ambiguous; one in `known_requests` is recognised by its bytes. `client_exchange` writes the reply, which `writer` turns
into bytes. `delivery` and `unread` watch clients that read slowly, `keepalive` those that say nothing; `edge_settings`
has the limits.

*What is passed around.* `reply` has the values between the edge and the rest, `route` a route as the configuration
wants it, `problem` every answer that the gateway gives in its own words.

*What nothing protects.* `passthrough` forwards it, as a `tunnel` after an upgrade.

*What a route protects.* `coordinator` orders the steps. `identifying` finds out what the request is: `arrivals` bounds
how many bodies are awaited, `spool` takes a body in, `digesting` digests it, `structured_fields` reads quoted keys.
Then `runs` executes it: `claiming` gets the claim, `leases` keeps it, `attempt` forwards the request once, `conclusion`
says what came of that, and `journaling` keeps it when the store does not. `leading` answers the first caller,
`duplicates` everybody else: `waiting` for another gateway, or `probing` the upstream, for as long as their `preference`
says. `compose` makes the replies, and `decoding` undoes a coding that a client does not accept. `story` gathers what is
told of a request, `request_info` what is kept of it for people, and `timing` has the waits that every request meets.

*The upstream.* `forwarding` decides which fields cross, `upstream` is the client, `answer_stream` passes a long answer
on. The files for TLS, with either side, are read by `certificates`.
"""
