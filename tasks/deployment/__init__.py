"""Deployment targets of the environment: this machine, a container, a Space."""
