"""From a trajectory store to trained, evaluated, horizon-adaptive policies."""
