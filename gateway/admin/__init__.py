"""What operators do about operations, by the command line and by the admin API.

*Actions.* `operations` inspects, lists, resolves, requeues and purges, one or many; `resolution` turns a ruling about a
doubt, or a decision about a kept request, into a command, or explains why not. `journal` deals with the outcomes in the
journals of this host, and with responses as files.

*Presentation.* `view` shows an operation and what happened to it, `inspection` all that is known of one and many as a
table, `listing` many for people to filter and sort, and the callers of a key, `reports` sinks, their events, observed
routes and the store's memory.

*The command line.* `commands` is what the commands do; `gateway.options` has their options.

*The admin port.* `actions` has each action once: its role, its path, what is given, its page and its command. `api` is
the port for programs. `access` has people, roles and sessions, and who sends a request: by a token, a session, or the
word of a proxy or an issuer. `pages` is the console in a browser.

Entered by api.AdminApi, commands.job_of.
Imports config, core, observe, options, protect, store.
"""
