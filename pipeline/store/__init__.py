"""What a trajectory store is: the contract between the pipeline and the trainer."""
