"""What is wrong with runs, found before anything is built."""
