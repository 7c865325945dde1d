"""What Prometheus reads from a server and from its nodes."""
