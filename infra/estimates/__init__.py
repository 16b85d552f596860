"""What a stage will take: machines, measured rates, memory and hours."""
