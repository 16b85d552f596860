"""Devices and processes as one machine: mesh, sharding rules, meeting and agreeing."""
