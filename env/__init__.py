"""The environment: one episode is a tree of agents over one session. No torch here."""
