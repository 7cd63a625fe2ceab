"""One command for each claim about speed and memory, side by side with the peers."""
