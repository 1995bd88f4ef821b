"""What operators do about operations, by the console and by the admin API.

*What they do.* `operations` looks, lists, resolves and purges. `resolution` makes a ruling a command, or says what
speaks against it; `policy` is what has to be known of the routes. `memory` is about a store that lost its memory,
`journal` shows the journals of this host, and `outcome` deals with one outcome in them. `answer` reads an answer of the
service that somebody brings, and `listing` a file of many resolutions. `recovery` says what gateways do by themselves.

*The console.* `arguments` are the command lines, `commands` what they do, `console` what is printed.

*The admin API.* `api` is the port, `request` what is asked of it.

*Both* show an operation by `view`, and all that is known of one by `inspection`.
"""
