"""The composition root: the configuration becomes objects here, and nowhere else are they put together."""
