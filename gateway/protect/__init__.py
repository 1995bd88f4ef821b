"""What happens to a request that a route protects. The modules, in the order in which it meets them:

*What is passed around.* `reply` has the values between the edge and the rest, `route` a route as the configuration
wants it, `hop` where a request came from, `problem` every response in the gateway's own words.

*The steps.* `coordinator` orders them. `ambiguity` refuses what can be read in two ways. `identification` finds out
what the request is: `body` takes its body in, and `structured_fields` reads quoted keys. `operations` has a task for
each `operation`, which executes it: `claiming` gets the claim, `leases` keeps it, `attempt` forwards the request once,
`conclusion` says what came of that, and `journaling` keeps it when the store does not. `duplicates` answers all but the
first caller: `waiting` for another gateway, or `probing` the upstream, for as long as their `preference` allows.
`compose` makes the replies, and `decoding` undoes a coding that a client does not accept. `trace` gathers what people
are told about a request, and `stopwatch` measures it.

*To the service.* `forwarding` decides which headers cross, and `answer_stream` passes a long response on.
"""
