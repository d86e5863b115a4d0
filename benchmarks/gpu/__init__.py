"""What can be known on a GPU alone: correctness, speed and memory of trainings, by one command."""
