"""Lines of `nvidia-smi` on machines with graphics cards."""

T4 = "Tesla T4, 15360, 15095, 580.82.07, 7.5"
OLD_T4 = "Tesla T4, 15360, 15095, 550.54.15, 7.5"
A100 = "NVIDIA A100-SXM4-40GB, 40960, 40436, 580.95.05, 8.0"
H200 = "NVIDIA H200, 143771, 143156, 580.95.05, 9.0"
