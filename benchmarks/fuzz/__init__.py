"""Coverage-guided fuzzing of the sandbox channel and of the server."""
