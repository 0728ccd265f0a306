"""MLflow registry: versions, the champion, and the use of registered models."""
