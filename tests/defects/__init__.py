"""The proof is itself proved: deliberate defects of the product, each caught by a test that is named for it."""
