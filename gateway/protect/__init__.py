"""What happens to a request on a protected route. The modules, in the order in which a request meets them:

*Values.* `request` is one request on its way and what operators see of it, `reply` what it gets, `route` a route as
configured, `hop` where it came from, `problem` the gateway's own error responses. `cors` says what pages of other
origins may read.

*Steps.* `ambiguity` refuses requests that can be read in two ways. `coordinator` orders the steps after that.
`identification` finds the operation of a request: `callers` says whose it is, and `body` receives its body. `operation`
claims, sends and records in a task of its own: `claiming` gets the claim, `leases` renews it, `conclusion` turns the
result into a command and replies, and `journaling` keeps it while the store does not. `duplicates` replies to all but
the first caller: by `waiting` for another gateway, or by `probing` the upstream, for as long as their `preference`
allows; where many come or wake at once, `slices` gives each its turn, and `limits` says how long each step may take.
`repeats` notices requests that come again under another key. `compose` builds replies, and `decoding` undoes a coding
that a client does not accept.

*Requests that are delivered later.* `accepting` stores them: `kept` encodes and encrypts one. `resource` shows callers
the `status` of their operations. `verification` asks of a webhook who sent it, and `inbox` acknowledges it.

*Requests of another region.* `regions` sends them there, and says what is believed of those that come from there.

*Requests that are only observed.* `sighting` copies what streams by, and `observing` judges it.

*To the service.* `forwarding` decides which headers cross, and `upstream_reply` streams a long response.
"""
