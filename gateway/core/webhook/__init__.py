"""Webhooks: who sent one and which event it is, and how those that the gateway sends or sends on are signed.

`scheme` has the signature schemes, as data, and the presets of senders made of them. `signature` verifies and makes
signatures of any scheme. `examination` decides what a request to an inbox is.
"""
