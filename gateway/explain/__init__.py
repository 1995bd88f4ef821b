"""What the gateway would do with a request, and why: the command of that name, and the page of the console.

`dry_run` makes the bytes of a request of curl's words, or of a file, and sends them along the path that requests take,
up to the store, with nobody asked and nothing written. `explaining` says what was decided on the way, by which line of
the configuration, and asks the store where that is wanted.

Entered by explaining.Explainer.
Imports admin, app, config, core, http, observe, protect, store, upstream.
"""
