"""The other side of the boundary: zygote, templates and workers.

Modules here import only the standard library and nothing of `env`. The zygote is a bare
interpreter with this folder's parent on its path. So hostile code can reach only these imports.
"""
