"""The committed figures of `rlm benchmark oolong`, and the stand-in endpoint that they need."""
