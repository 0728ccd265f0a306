"""The environment: one episode is a tree of agents in one session. Imports no torch."""
