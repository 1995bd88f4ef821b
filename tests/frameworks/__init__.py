"""Real frameworks behind the gateway: what each reads as a protected path, and that none of it passes."""
