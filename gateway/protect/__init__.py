"""What happens to a request on a protected route. The modules, in the order in which a request meets them:

*Values.* `request` is one request on its way, its body, what operators see of it, and its turn where many come or wake
at once, `reply` what it gets, also the gateway's own error responses and what is decoded for it, `route` a route as
configured.

*Steps.* `ambiguity` refuses requests that can be read in two ways. `coordinator` orders the steps after that.
`identification` finds the operation of a request, and whose it is. `operation` claims, sends and records in a task of
its own: `claiming` gets the claim, renews its lease, and says how long each step may take, `compose` turns the result
into a command and replies, and `journaling` keeps it while the store does not. `duplicates` replies to all but the
first caller: they wait for another gateway, or `probing` asks the upstream; it also notices requests that come again
under another key. `compose` builds all replies, also from a response that streams.

*Requests that are delivered later.* `accepting` encodes, encrypts and stores them. `resource` shows callers the status
of their operations. `inbox` asks of a webhook who sent it, and acknowledges it.

*Requests of another region.* `regions` sends them there, and says what is believed of those that come from there.

*Requests that are only observed.* `observing` copies what streams by, and judges it.

*To the service.* `forwarding` decides which headers cross, in either direction, which preferences are heeded, and what
pages of other origins may read.

Entered by coordinator.Coordinator.respond, observing.Observing, resource.StatusResource, route.route_of.
Imports config, core, observe, store, upstream.
"""
