"""What runs on the other side of the boundary: zygote and workers.

Standard library only, and nothing of `env`: the zygote is started with this folder's parent on
its path and a bare interpreter, so what is imported here is all that hostile code can reach.
"""
