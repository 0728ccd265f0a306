"""Background services of `make up`, and the objects in Prefect's server."""
