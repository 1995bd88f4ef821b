"""What operators do about operations, by the command line and by the admin API.

*Actions.* `operations` inspects, lists, resolves, requeues and purges; `resolution` turns a ruling about a doubt, or a
decision about a kept request, into a command, or explains why not. `bulk` does it for many. `memory` deals with a store
that lost its memory, `journal` with the outcomes in the journals of this host. `provided_response` reads a response of
the service that an operator provides.

*Presentation.* `view` shows an operation, `history` what happened to it, `inspection` all that is known of one and many
as a table, `listing` many for people to filter and sort, and the callers of a key, `reports` sinks, their events and
observed routes.

*The command line.* `commands` is what the commands do; `gateway.options` has their options.

*The admin port.* `actions` has each action once: its role, its path, what is given, its page and its command. `api` is
the port for programs, `fault` why one is not carried out. `access` has people, roles and sessions, and who sends a
request; `vouching` believes a proxy, or an issuer of tokens. `pages` is the console in a browser.

Entered by api.AdminApi, commands.job_of.
Imports config, core, observe, options, protect, store.
"""
