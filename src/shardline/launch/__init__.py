"""Starting the ranks, and finding out in each of them which one it is."""
