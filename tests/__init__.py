"""The proof: every promise has a test that fails without it."""
