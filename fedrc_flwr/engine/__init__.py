"""Running a federation: the rounds on the server, a run's outputs, a client, and one process."""
