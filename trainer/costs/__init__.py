"""Costs of a configuration: parameters, operations, memory and measured speed."""
