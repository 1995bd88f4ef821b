"""What operators do about operations, by the console and by the admin API.

*Actions.* `operations` inspects, lists, resolves, requeues and purges; `resolution` turns a ruling about a doubt, or a
decision about a kept request, into a command, or explains why not. `requeueing` requeues many. `sinks` is about sinks
and their events. `observed` says what enforcement would have done. `memory` deals with a store that lost its memory,
`journal` with the outcomes in the journals of this host. `provided_response` reads a response of the service that an
operator provides, and `listing` a file of many resolutions.

*Presentation.* `view` shows an operation, and `inspection` all that is known of one.

*The console.* `commands` is what the commands do, and `console` what they show; `gateway.options` has their options.

*The admin port.* `actions` has each action once: its role, its path, what is given and its page. `api` is the port for
programs, `fault` why one is not carried out. `access` has people, roles and sessions, `authentication` who sends a
request, and reads its forms. `pages` is the console in a browser, and `process` is what it gets of the gateway that
serves it.
"""
