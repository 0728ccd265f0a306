"""The server's side, with gold, rewards and sandboxes; no client imports it."""
