"""What every server of the project checks before it reads a request."""
