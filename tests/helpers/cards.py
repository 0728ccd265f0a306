"""Answers of `nvidia-smi` on machines with graphics cards."""

HEAD = "name, memory.total [MiB], memory.free [MiB], driver_version, compute_cap\n"
T4 = f"{HEAD}Tesla T4, 15360 MiB, 15095 MiB, 580.82.07, 7.5\n"
OLD_T4 = f"{HEAD}Tesla T4, 15360 MiB, 15095 MiB, 550.54.15, 7.5\n"
A100 = f"{HEAD}NVIDIA A100-SXM4-40GB, 40960 MiB, 40436 MiB, 580.95.05, 8.0\n"
H200 = f"{HEAD}NVIDIA H200, 143771 MiB, 143156 MiB, 580.95.05, 9.0\n"
