"""What the training examples share: the methods compared, runs that survive a stop, and the pages of results."""
