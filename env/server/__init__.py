"""The server's side: gold, rewards and sandboxes live here, and no client imports it."""
