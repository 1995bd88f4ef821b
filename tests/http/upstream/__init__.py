"""The upstream client, over real sockets and on both event loops."""
