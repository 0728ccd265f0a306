"""Background services of `make up`, and the automations of Prefect's server."""
