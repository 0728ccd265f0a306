"""What stands between the socket and a session."""
