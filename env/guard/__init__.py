"""Rules for servers that speak HTTP on this machine: the environment and the chat page."""
