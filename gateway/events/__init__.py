"""Publishes events about operations to the sinks of consumers.

`relay` takes the rows that the stores wrote in the very change (`core.outbox`), and publishes them until each sink has
acknowledged its own. `sink` is the contract of a sink, and the result of a publication.

*Sinks.* `webhook` is HTTP, and guards which addresses it connects to. `redis_stream`, `nats` and `kafka` are brokers;
standard output is for trying. The library of an extra is imported by its sink alone, when that is used.

Entered by relay.Relay. Imports config, core, observe, store, upkeep, upstream.
"""
