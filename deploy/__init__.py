"""Running a federation for real: certificates, keys, launchers, checks."""
