"""From raw trajectories to a trajectory store, as an Apache Beam pipeline."""
