"""What a configuration costs: parameters, operations, memory and measured speed."""
