"""Starting the ranks, and resolving in each of them its place in the job."""
