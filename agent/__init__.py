"""The agent: policies, tree rollouts and the trainer. Knows neither Prefect nor MLflow."""
