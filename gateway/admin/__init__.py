"""What operators do about operations, by the console and by the admin API.

*What they do.* `operations` looks, lists, resolves and purges; `resolution` makes a ruling a command, or says what
speaks against it. `memory` is about a store that lost its memory, `journal` about the outcomes in the journals of this
host. `answer` reads an answer of the service that somebody brings, and `listing` a file of many resolutions.

*What they see.* An operation by `view`, and all that is known of one by `inspection`.

*The console.* `console` are the command lines and what is printed, `commands` what they do.

*The admin API.* `api` is the port, `request` what is asked of it.
"""
