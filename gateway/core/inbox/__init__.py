"""Webhooks: who sent one, which event it is, and how it is signed again for the service.

`scheme` has the signature schemes of senders, as data, and the presets made of them. `signature` verifies and makes
signatures of any scheme. `examination` decides what a request to an inbox is.
"""
