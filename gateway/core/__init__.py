"""What is true. Pure: no clock, no I/O, no logging, no third-party import but ciphers and signatures.

*The life of an operation.* `operation` has the nouns and `lifecycle` the table. `verdict` decides what a request gets,
`outcome` what an attempt comes to, `recovery` how doubt is resolved, `delivery` when a kept request is sent again,
`breaker` whether an upstream is tried at all.

*Which operation a request is about, and whether it is the same request:* `identity`. *Who sent a webhook, and which
event it is:* `inbox`.

*HTTP as values.* `message` has heads and headers, `replay` what is kept of a response, `routing` which route a path
meets, `succession` which operations lose requests when routes change.

*Beneath all of these.* `immutable` declares a value, `framing` digests parts so that they cannot run into one another,
`sealing` encrypts what is stored.
"""
