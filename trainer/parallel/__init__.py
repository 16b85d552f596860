"""Devices and processes: the mesh, sharding rules, and how processes meet and agree."""
