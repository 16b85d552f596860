"""Launching pipeline and trainer on machines somebody else maintains."""
