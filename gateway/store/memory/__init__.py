"""Whether a durable store may be believed: what it was seen to have, and what it has now.

`guard` is the face: requests pass it, and nobody else asks the others. `epoch` notes what a store acknowledged, and
compares memories; `promotion` decides about a promoted server. What they find out is one value that a request compares:
until when this gateway may grant.
"""
