"""Recursive episodes, played in parallel and recorded as trees."""
