"""What operators do about operations, by the command line and by the admin API.

*Actions.* `operations` inspects, resolves, requeues and purges one; `listing` finds, filters and sorts many, decides
about many dead letters, and finds the callers of a key. `resolution` turns a ruling about a doubt, or a decision about
a kept request, into a command, or explains why not. `journal` deals with the outcomes in the journals of this host, and
with responses as files.

*Presentation.* `view` shows an operation, all that is known of it and what happened to it; `reports` has times, sinks,
their events, observed routes and the store's memory.

*The command line.* `commands` is what the commands do; `gateway.options` has their options.

*The admin port.* `actions` has each action once: its role, its path, what is given, its page and its command. `api` is
the port for programs. `access` has people, roles and sessions, and who sends a request: by a token, a session, or the
word of a proxy or an issuer. `console` has the pages for a browser, and `pictures` draws numbers and histories.

Entered by api.AdminApi, commands.job_of.
Imports config, core, observe, options, protect, store, upkeep.
"""
