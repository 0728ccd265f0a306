"""The other side of the boundary: zygote, templates and workers.

Modules here import only the standard library and, of `env`, `ranking`, which needs one C module for
the stems of words. The zygote is a bare interpreter with these on its path. So hostile
code can reach only these imports.
"""
