"""What is true. Pure: no clock, no I/O, no logging, no third-party import."""
