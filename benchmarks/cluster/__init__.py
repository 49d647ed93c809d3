"""What a cluster of some size can do, from constants measured on one machine."""
