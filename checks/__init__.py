"""Checks of the repository itself: `make check` runs them; nothing that is installed needs them."""
