"""The auditor: a second and simpler reading of what must hold. It imports nothing of the program that it judges."""
