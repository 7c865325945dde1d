"""Which clients mean the same by a label, found from one fingerprint of each client."""
