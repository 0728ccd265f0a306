"""Comparison of models: confidence intervals, the report and the promotion rule."""
