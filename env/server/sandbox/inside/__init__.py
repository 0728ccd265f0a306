"""The other side of the boundary: zygote, templates and workers.

Modules here import only the standard library and, of `env`, `ranking`. The zygote is a bare
interpreter with these two on its path. So hostile code can reach only these imports.
"""
