"""The agent: policies, tree rollouts and the trainer. Knows neither Prefect nor MLflow."""

import logging

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # no 4-bit kernels on a CPU
