"""What happens to a request."""
