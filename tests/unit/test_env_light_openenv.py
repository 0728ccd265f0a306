"""OpenEnv's slow imports wait until somebody needs them."""

import importlib

import env.light_openenv  # noqa: F401


def test_a_class_of_a_package_left_out_makes_real_objects() -> None:
    from openenv.core.env_server import mcp_environment

    text = mcp_environment.TextContent(type="text", text="found")
    assert type(text) is importlib.import_module("mcp.types").TextContent
    assert text.text == "found"
