"""What is true. Pure: no clock, no I/O, no logging, no third-party import.

*The life of an operation.* `operation` has the nouns and `lifecycle` the table. `verdict` decides what a request gets,
`outcome` what an attempt comes to, `recovery` how doubt is resolved.

*Which operation a request is about.* `key` and `scope` make the `identity`. `fingerprint` says whether two requests are
the same, by the canonical forms of their bodies: `canonical` (JSON and forms), `multipart`, with `media` for media
types and `pointer` for JSON Pointers.

*HTTP as values.* `message` has heads and fields, `replay` what is kept of an answer, `routing` which route a path
meets, `succession` which operations lose requests when routes change.

*Beneath all of these.* `immutable` declares a value, `framing` digests parts so that they cannot run into one another.
"""
