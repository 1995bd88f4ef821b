"""Publishes events about operations to the sinks of consumers.

`relay` takes the rows that the stores wrote in the very change (`core.outbox`), and publishes them until each sink has
acknowledged its own. It has the contract of a sink, and the result of a publication.

*Sinks.* `webhook` is HTTP, and guards which addresses it connects to. `brokers` (Kafka and NATS) and `redis_stream`
import their libraries when they are used; standard output, in `relay`, is for trying.

Entered by relay.Relay. Imports config, core, observe, store, upkeep, upstream.
"""
