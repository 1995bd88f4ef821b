"""What the gateway would do with a request, and why: the command of that name.

`request` makes the bytes of a request of curl's words, or of a file. `dry_run` sends them along the path that requests
take, up to the store, with nobody asked and nothing written. `steps` says what was decided on the way, and by which
line of the configuration. `explaining` puts these together, and asks the store where that is wanted. `serving` does so
for the console of a gateway.
"""
