"""Records of runs in MLflow: parameters, metrics, data."""
